#pragma once
// Before the screen: Q and K rounded to bfloat16, tile by tile as wgmma reads them, with what bounds the
// error of their product: |<q, k> - <q', k'>| <= |q - q'| |k| + |q'| |k - k'|. And the smallest and largest
// k_position of each tile.

#include <cuda_bf16.h>

#include "gpu/arch/mma.cuh"
#include "gpu/arch/swizzle.h"
#include "gpu/ladders/splash/rows.cuh"

namespace splash::gpu::sparse {

constexpr int kScreenTile = 128;                // queries, and keys, of a tile
constexpr int kPanelBytes = kScreenTile * 128;  // 64 dimensions in bfloat16
constexpr int kRoundThreads = 256;

struct Rounded {
  unsigned char *q, *k;  // [heads, tiles, panels, kPanelBytes], swizzled
  float2* q_norms;       // [heads, tiles, kScreenTile]: |q - q'|, |q|
  float2* k_norms;       // [key heads, tiles]: the largest |k - k'| and |k|
  int2* k_positions;     // [heads, tiles]: smallest and largest; only with a mask by positions
  int q_tiles, k_tiles, key_heads;
};

// One tile of rows. Eight lanes a row, 8 dimensions each; rows past the end and dimensions past the last
// become zeros.
template <int kPanels, class UseNorms>
__device__ __forceinline__ void round_tile(const float* rows, int count, int head_dim, float sign,
                                           unsigned char* to, const UseNorms& use_norms) {
  const int chunk = static_cast<int>(threadIdx.x) % 8;
  for (int row = static_cast<int>(threadIdx.x) / 8; row < kScreenTile; row += kRoundThreads / 8) {
    float square = 0, error_square = 0;
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const int d = 64 * panel + 8 * chunk;
      uint32_t packed[4] = {};
      if (row < count && d < head_dim) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 x =
              *reinterpret_cast<const float2*>(rows + static_cast<int64_t>(row) * head_dim + d + 2 * i);
          packed[i] = arch::pack_pair<__nv_bfloat16>(sign * x.x, sign * x.y);
          const float dx = sign * x.x - __uint_as_float(packed[i] << 16);
          const float dy = sign * x.y - __uint_as_float(packed[i] & 0xFFFF0000u);
          square += x.x * x.x + x.y * x.y;
          error_square += dx * dx + dy * dy;
        }
      }
      *reinterpret_cast<uint4*>(to + panel * kPanelBytes +
                                arch::swizzled_offset(arch::Swizzle::bytes128, row, 16 * chunk)) =
          make_uint4(packed[0], packed[1], packed[2], packed[3]);
    }
#pragma unroll
    for (int lanes = 4; lanes > 0; lanes /= 2) {
      square += __shfl_xor_sync(kWarp, square, lanes);
      error_square += __shfl_xor_sync(kWarp, error_square, lanes);
    }
    // Rounded up; never with a sign, so that the bits of these floats, NaN last, are in order.
    if (chunk == 0) use_norms(row, fabsf(1.0001f * sqrtf(error_square)), fabsf(1.0001f * sqrtf(square)));
  }
}

// Blocks: a tile of queries, a tile of keys, or a tile of k_positions each.
template <int kPanels>
__global__ void __launch_bounds__(kRoundThreads)
    round_kernel(const __grid_constant__ Problem p, const Rounded to) {
  __shared__ int low, high;  // of what the tile's rows have
  int tile = static_cast<int>(blockIdx.x);
  if (tile < p.heads * to.q_tiles) {
    const int head = tile / to.q_tiles, first = tile % to.q_tiles * kScreenTile;
    round_tile<kPanels>(p.q + (static_cast<int64_t>(head) * p.q_len + first) * p.head_dim, p.q_len - first,
                        p.head_dim, p.scale < 0 ? -1.0f : 1.0f,
                        to.q + static_cast<int64_t>(tile) * kPanels * kPanelBytes,
                        [&](int row, float error, float norm) {
                          to.q_norms[static_cast<int64_t>(tile) * kScreenTile + row] = {error, norm};
                        });
    return;
  }
  tile -= p.heads * to.q_tiles;
  const int first = tile % to.k_tiles * kScreenTile, head = tile / to.k_tiles;
  if (threadIdx.x == 0) {
    low = head < to.key_heads ? 0 : INT32_MAX;
    high = head < to.key_heads ? 0 : INT32_MIN;
  }
  __syncthreads();
  if (head < to.key_heads) {
    round_tile<kPanels>(p.k + (static_cast<int64_t>(head) * p.kv_len + first) * p.head_dim, p.kv_len - first,
                        p.head_dim, 1.0f, to.k + static_cast<int64_t>(tile) * kPanels * kPanelBytes,
                        [&](int, float error, float norm) {
                          atomicMax(&low, __float_as_int(error));
                          atomicMax(&high, __float_as_int(norm));
                        });
  } else {
    const int position_head = head - to.key_heads, key = first + static_cast<int>(threadIdx.x);
    if (threadIdx.x < kScreenTile && key < p.kv_len) {
      const int position = p.k_positions[static_cast<int64_t>(position_head) * p.kv_len + key];
      atomicMin(&low, position);
      atomicMax(&high, position);
    }
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (head < to.key_heads) {
    to.k_norms[tile] = {__int_as_float(low), __int_as_float(high)};
  } else {
    to.k_positions[tile - to.key_heads * to.k_tiles] = {low, high};
  }
}

}  // namespace splash::gpu::sparse
