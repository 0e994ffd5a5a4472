#pragma once
// Allocates entries of the support for the rows of a warp, by one atomicAdd per warp.

#include "gpu/entmax/math/arithmetic.cuh"

namespace splash::gpu::entmax {

// Allocates for 16 rows, all or nothing. Lane r < 16 passes row r's `count`, the other lanes 0. Returns the
// index of the row's first entry, or -1 where the store has no room for all 16.
__device__ __forceinline__ int64_t allocate_support(const Support& support, int count) {
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

// Allocates for the 16 rows of a warp whose quads hold two rows each, all or nothing, and writes the rows'
// offsets and counts. counts: how many entries the lane itself holds of its two rows. at: where the lane's
// entries start (a row's entries lie lane after lane), or -1.
__device__ __forceinline__ void place_support(const ForwardProblem& p, int head, const int (&query)[2],
                                              const int (&counts)[2], int64_t (&at)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int total[2], before[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int upto = counts[half];
    int lower = __shfl_up_sync(kWarp, upto, 1, 4);
    if (lane % 4 >= 1) upto += lower;
    lower = __shfl_up_sync(kWarp, upto, 2, 4);
    if (lane % 4 >= 2) upto += lower;
    before[half] = upto - counts[half];
    total[half] = __shfl_sync(kWarp, upto, 3, 4);
  }
  // allocate_support wants row r's count in lane r.
  const int first_rows = __shfl_sync(kWarp, total[0], lane % 8 * 4);
  const int second_rows = __shfl_sync(kWarp, total[1], lane % 8 * 4);
  const int64_t first = allocate_support(p.support, lane < 8 ? first_rows : lane < 16 ? second_rows : 0);
  at[0] = __shfl_sync(kWarp, first, lane / 4);
  at[1] = __shfl_sync(kWarp, first, lane / 4 + 8);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (lane % 4 == 0 && query[half] >= 0) {
      const int64_t row = int64_t{head} * p.q_len + query[half];
      p.support.offsets[row] = at[half];
      p.support.counts[row] = total[half];
    }
    if (at[half] >= 0) at[half] += before[half];
  }
}

}  // namespace splash::gpu::entmax
