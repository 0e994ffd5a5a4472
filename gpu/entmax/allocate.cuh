#pragma once
// Room in the support for the rows of a warp.

#include "gpu/entmax/weights.cuh"

namespace splash::gpu::entmax {

// Space in the support for 16 rows, of which lane r < 16 has `count` entries: the address of its first one,
// or -1 where the store is full.
__device__ __forceinline__ int64_t allocate(const Support& support, int count) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int upto = count;
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const int lower = __shfl_up_sync(kWarp, upto, lanes);
    if (lane >= lanes) upto += lower;
  }
  const int total = __shfl_sync(kWarp, upto, 31);
  unsigned long long base = 0;
  if (lane == 0) base = atomicAdd(support.used, static_cast<unsigned long long>(total));
  base = __shfl_sync(kWarp, base, 0);
  const bool fits = base + total <= static_cast<unsigned long long>(support.capacity);
  return fits ? static_cast<int64_t>(base) + upto - count : -1;
}

}  // namespace splash::gpu::entmax
