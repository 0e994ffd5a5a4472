#pragma once
// The lists of an anchor's step, from what steps.cuh leaves: each key's probabilities, pooled over the rows
// in the shared memory of a cluster, and the selection from them. Longer lists are pooled by a kernel of
// their own before select.cuh's.

#include "gpu/kascade/select.cuh"
#include "gpu/kascade/steps.cuh"

namespace splash::gpu::kascade {

constexpr int kPoolChunk = 8 * kStepThreads;  // of pool_steps

// Of select_pooled: keys that a block takes, so that several blocks share a multiprocessor, and that it has
// room for where a list is longer; blocks of a cluster, as many as every device schedules together.
constexpr int kPooledKeysWanted = 16384, kMostPooledKeys = 49152, kMostPoolBlocks = 8;

inline int pool_blocks(int64_t kv_len) {
  int blocks = 1;
  while (blocks < kMostPoolBlocks && kv_len > int64_t{blocks} * kPooledKeysWanted) blocks *= 2;
  return blocks;
}

// Normalisers of all rows; ends with a barrier. Several warps share a row where rows are few, and ask for
// some pieces at once: a long list has thousands.
template <int kThreads>
__device__ void find_step_normalizers(const StepRows& steps, int list, float (&normalizers)[kMostStepRows]) {
  constexpr int kWarps = kThreads / 32, kAtOnce = 4;
  __shared__ float2 of_warps[kWarps];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int pieces = steps.blocks * kStepWarps, shares = max(1, kWarps / steps.rows),
            share = warp / steps.rows, apart = 32 * shares;
  const float2* const partial = steps.partial + int64_t{list} * pieces * steps.rows;
  for (int row = warp % steps.rows; row < steps.rows && share < shares; row += kWarps) {
    RowSum sum;
    for (int first = 32 * share + lane; first < pieces; first += kAtOnce * apart) {
      float2 parts[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int piece = first + i * apart;
        parts[i] = piece < pieces ? partial[piece * steps.rows + row] : float2{-INFINITY, 0.0f};
      }
      sum.add(parts);
    }
    sum.add_lanes<1>();
    if (lane == 0) {
      of_warps[warp] = {sum.largest, sum.sum};
      if (shares == 1) normalizers[row] = sum.normalizer();
    }
  }
  __syncthreads();
  if (shares == 1) return;
  if (const int row = threadIdx.x; row < steps.rows) {
    RowSum sum;
    for (int i = 0; i < shares; ++i) {
      const float2 of_warp[1] = {of_warps[i * steps.rows + row]};
      sum.add(of_warp);
    }
    normalizers[row] = sum.normalizer();
  }
  __syncthreads();
}

// Leaves them for weigh_values.
__device__ inline void keep_normalizers(const StepRows& steps, int list,
                                        const float (&normalizers)[kMostStepRows]) {
  if (threadIdx.x < steps.rows)
    steps.normalizers[int64_t{list} * steps.rows + threadIdx.x] = normalizers[threadIdx.x];
}

// Keys that a thread pools at once: 16 bytes of a row.
template <int kBytes>
constexpr int kPooledKeys = 8 / kBytes;

// The probabilities of some keys, summed over the rows. A row without keys, or with NaN, has none.
// What lies behind the last key, up to the pitch, is not looked at.
template <int kBytes>
__device__ inline void pool_keys(const StepRows& steps, int list, int64_t pitch, int key,
                                 const float (&normalizers)[kMostStepRows],
                                 float (&pooled)[kPooledKeys<kBytes>]) {
#pragma unroll
  for (float& sum : pooled) sum = 0;
  const int64_t place = int64_t{list} * steps.rows * pitch + key;
  if constexpr (kBytes == 1) {
    const __nv_bfloat16* weights = steps.weights + place;
    const float* largest = steps.largest + place / kKeyGroup;
#pragma unroll 4
    for (int row = 0; row < steps.rows; ++row, weights += pitch, largest += pitch / kKeyGroup) {
      const uint4 eight = *reinterpret_cast<const uint4*>(weights);
      const float factor = fmaxf(arch::exp2_approx(*largest - normalizers[row]), 0.0f);
      const uint32_t pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        pooled[2 * i] = fmaf(__uint_as_float(pairs[i] << 16), factor, pooled[2 * i]);
        pooled[2 * i + 1] = fmaf(__uint_as_float(pairs[i] & 0xFFFF0000u), factor, pooled[2 * i + 1]);
      }
    }
  } else {
    const float* scores = steps.scores + place;
#pragma unroll 4
    for (int row = 0; row < steps.rows; ++row, scores += pitch) {
      const float4 four = *reinterpret_cast<const float4*>(scores);
      const float each[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) pooled[i] += fmaxf(arch::exp2_approx(each[i] - normalizers[row]), 0.0f);
    }
  }
}

// Each key's probabilities, where the shared memory of a cluster does not hold a list's.
template <int kBytes>
__global__ void __launch_bounds__(kStepThreads)
    pool_steps(const __grid_constant__ AnchorSlab slab, const StepRows steps) {
  entmax::wait_for_kernels_before();
  __shared__ float normalizers[kMostStepRows];
  const int list = blockIdx.y, first = static_cast<int>(blockIdx.x) * kPoolChunk,
            end = min(slab.visible_of(list), first + kPoolChunk);
  find_step_normalizers<kStepThreads>(steps, list, normalizers);
  if (blockIdx.x == 0) keep_normalizers(steps, list, normalizers);
  auto* const to = reinterpret_cast<float4*>(slab.pooled + int64_t{list} * slab.pitch);
  constexpr int kKeys = kPooledKeys<kBytes>;
  for (int key = first + kKeys * static_cast<int>(threadIdx.x); key < end; key += kKeys * kStepThreads) {
    float pooled[kKeys];
    pool_keys<kBytes>(steps, list, slab.pitch, key, normalizers, pooled);
#pragma unroll
    for (int i = 0; i < kKeys; i += 4)
      to[(key + i) / 4] = {pooled[i], pooled[i + 1], pooled[i + 2], pooled[i + 3]};
  }
}

// The same, and the list from it: a cluster for each list of the slab, whose blocks keep the orders of their
// keys in shared memory.
template <int kBytes>
__global__ void __launch_bounds__(kSelectThreads, 2)
    select_pooled(const __grid_constant__ AnchorSlab slab, const StepRows steps, int32_t* lists) {
  entmax::wait_for_kernels_before();
  extern __shared__ __align__(16) uint32_t kept[];
  __shared__ SelectShared shared;
  __shared__ float normalizers[kMostStepRows];
  const ListBlocks blocks = ListBlocks::of_cluster();
  const int list = arch::cluster_index();
  const TileAddress at = slab.address_of(list);
  const ListKeys keys(slab, at, blocks);
  clear_histogram(shared.histograms[0]);
  find_step_normalizers<kSelectThreads>(steps, list, normalizers);
  if (blocks.rank == 0) keep_normalizers(steps, list, normalizers);
  constexpr int kKeys = kPooledKeys<kBytes>;
  for (int key = keys.begin + kKeys * static_cast<int>(threadIdx.x); key < keys.end;
       key += kKeys * kSelectThreads) {
    float pooled[kKeys];
    pool_keys<kBytes>(steps, list, slab.pitch, key, normalizers, pooled);
    uint32_t orders[kKeys];
    keys.find_orders(key, pooled, orders);
#pragma unroll
    for (const uint32_t order : orders) atomicAdd(&shared.histograms[0][order >> kFirstShift], 1u);
#pragma unroll
    for (int i = 0; i < kKeys; i += kVector)
      *reinterpret_cast<uint4*>(kept + key - keys.begin + i) = {orders[i], orders[i + 1], orders[i + 2],
                                                                orders[i + 3]};
  }
  write_largest<true>(slab, at, KeptOrders{keys, kept}, blocks, shared, lists);
}

}  // namespace splash::gpu::kascade
