#pragma once
// Runs before the screen. Rounds K to bfloat16, tile by tile in the layout that wgmma reads, and computes the
// norms that bound a product's error: |<q, k> - <q', k'>| <= |q - q'| |k| + |q'| |k - k'|, where q' and k'
// are rounded. It also finds the smallest and largest k_position of each tile.

#include <cuda_bf16.h>

#include "gpu/arch/mma.cuh"
#include "gpu/arch/swizzle.h"
#include "gpu/ladders/splash/rows.cuh"

namespace splash::gpu::sparse {

constexpr int kScreenTile = 128;                // queries, and keys, of a tile
constexpr int kPanelBytes = kScreenTile * 128;  // 64 dimensions in bfloat16
constexpr int kRoundThreads = 256;

struct Rounded {
  unsigned char* k;   // [key heads, tiles, panels, kPanelBytes], swizzled
  float2* k_norms;    // [key heads, tiles]: the largest |k - k'| and |k|
  int2* k_positions;  // [heads, tiles]: smallest and largest; only with a mask by positions
  int q_tiles, k_tiles, key_heads;
};

// Rounds x and y and packs them. Adds their squares to `square` and those of the rounding errors to
// `error_square`.
__device__ __forceinline__ uint32_t round_pair(float x, float y, float& square, float& error_square) {
  const uint32_t packed = arch::pack_pair<__nv_bfloat16>(x, y);
  const float dx = x - __uint_as_float(packed << 16), dy = y - __uint_as_float(packed & 0xFFFF0000u);
  square += x * x + y * y;
  error_square += dx * dx + dy * dy;
  return packed;
}

// Norms from sums of squares, rounded up even where squares underflow. They have no sign, so the bits of
// these floats have the order of their values, NaN last.
__device__ __forceinline__ float2 norms_of(float error_square, float square) {
  return {fabsf(1.0001f * sqrtf(error_square) + 1e-18f), fabsf(1.0001f * sqrtf(square) + 1e-18f)};
}

// Rounds one tile of rows. Eight lanes take a row, 8 dimensions each. Rows past the end and dimensions past
// the last become zeros.
template <int kPanels, class UseNorms>
__device__ __forceinline__ void round_tile(const float* rows, int count, int head_dim, unsigned char* to,
                                           const UseNorms& use_norms) {
  const int chunk = static_cast<int>(threadIdx.x) % 8;
#pragma unroll
  for (int pass = 0; pass < kScreenTile * 8 / kRoundThreads; ++pass) {
    const int row = pass * (kRoundThreads / 8) + static_cast<int>(threadIdx.x) / 8;
    float square = 0, error_square = 0;
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const int d = 64 * panel + 8 * chunk;
      float4 x[2]{};
      if (row < count && d < head_dim) {
        const auto* const from =
            reinterpret_cast<const float4*>(rows + static_cast<int64_t>(row) * head_dim + d);
        x[0] = from[0];
        x[1] = from[1];
      }
      uint4 packed;
      packed.x = round_pair(x[0].x, x[0].y, square, error_square);
      packed.y = round_pair(x[0].z, x[0].w, square, error_square);
      packed.z = round_pair(x[1].x, x[1].y, square, error_square);
      packed.w = round_pair(x[1].z, x[1].w, square, error_square);
      *reinterpret_cast<uint4*>(to + panel * kPanelBytes +
                                arch::swizzled_offset(arch::Swizzle::bytes128, row, 16 * chunk)) = packed;
    }
#pragma unroll
    for (int lanes = 4; lanes > 0; lanes /= 2) {
      square += __shfl_xor_sync(kWarp, square, lanes);
      error_square += __shfl_xor_sync(kWarp, error_square, lanes);
    }
    if (chunk == 0) use_norms(norms_of(error_square, square));
  }
}

// Each block takes one tile of keys or one tile of k_positions.
template <int kPanels>
__global__ void __launch_bounds__(kRoundThreads)
    round_kernel(const __grid_constant__ Problem p, const Rounded to) {
  __shared__ int low, high;  // positions: smallest and largest; keys: the largest norms, as bits
  const int tile = static_cast<int>(blockIdx.x);
  const int first = tile % to.k_tiles * kScreenTile, head = tile / to.k_tiles;
  const bool of_keys = head < to.key_heads;
  if (threadIdx.x == 0) {
    low = of_keys ? 0 : INT32_MAX;
    high = of_keys ? 0 : INT32_MIN;
  }
  __syncthreads();
  if (of_keys) {
    round_tile<kPanels>(p.k + (static_cast<int64_t>(head) * p.kv_len + first) * p.head_dim, p.kv_len - first,
                        p.head_dim, to.k + static_cast<int64_t>(tile) * kPanels * kPanelBytes,
                        [&](const float2& norms) {
                          atomicMax(&low, __float_as_int(norms.x));
                          atomicMax(&high, __float_as_int(norms.y));
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
  if (of_keys) {
    to.k_norms[tile] = {__int_as_float(low), __int_as_float(high)};
  } else {
    to.k_positions[tile - to.key_heads * to.k_tiles] = {low, high};
  }
}

}  // namespace splash::gpu::sparse
