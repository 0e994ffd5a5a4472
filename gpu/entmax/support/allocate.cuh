#pragma once
// Allocates entries of the support for the rows of a warp, by one atomicAdd per warp.

#include "gpu/entmax/math/arithmetic.cuh"

namespace splash::gpu::entmax {

// Entries for 16 rows, all or nothing. What comes between ask and first hides the atomic's latency.
class Allocation {
 public:
  // By the whole warp. Lane r < 16 passes row r's `count`, the other lanes 0.
  __device__ __forceinline__ void ask(const Support& support, int count) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    int upto = count;
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      const int lower = __shfl_up_sync(kWarp, upto, lanes);
      if (lane >= lanes) upto += lower;
    }
    before_ = upto - count;
    total_ = __shfl_sync(kWarp, upto, 31);
    if (lane == 0) base_ = atomicAdd(support.used, static_cast<unsigned long long>(total_));
  }
  // The index of the row's first entry, or -1 where the store has no room for all 16. By the whole warp.
  __device__ __forceinline__ int64_t first(const Support& support) const {
    const unsigned long long base = __shfl_sync(kWarp, base_, 0);
    const bool fits = base + total_ <= static_cast<unsigned long long>(support.capacity);
    return fits ? static_cast<int64_t>(base) + before_ : -1;
  }

 private:
  unsigned long long base_ = 0;  // lane 0's
  int before_ = 0, total_ = 0;
};
__device__ __forceinline__ int64_t allocate_support(const Support& support, int count) {
  Allocation allocation;
  allocation.ask(support, count);
  return allocation.first(support);
}

// The same for the 16 rows of a warp whose quads hold two rows each.
class QuadAllocation {
 public:
  // counts: how many entries the lane itself holds of its two rows.
  __device__ __forceinline__ void ask(const Support& support, const int (&counts)[2]) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int upto = counts[half];
      int lower = __shfl_up_sync(kWarp, upto, 1, 4);
      if (lane % 4 >= 1) upto += lower;
      lower = __shfl_up_sync(kWarp, upto, 2, 4);
      if (lane % 4 >= 2) upto += lower;
      before_[half] = upto - counts[half];
      total_[half] = __shfl_sync(kWarp, upto, 3, 4);
    }
    // Allocation wants row r's count in lane r.
    const int first_rows = __shfl_sync(kWarp, total_[0], lane % 8 * 4);
    const int second_rows = __shfl_sync(kWarp, total_[1], lane % 8 * 4);
    allocation_.ask(support, lane < 8 ? first_rows : lane < 16 ? second_rows : 0);
  }

  // Writes the rows' offsets and counts. first_row: of the head. at: where the lane's entries start (a row's
  // entries lie lane after lane), or -1.
  __device__ __forceinline__ void place(const Support& support, int64_t first_row, const int (&query)[2],
                                        int64_t (&at)[2]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int64_t first = allocation_.first(support);
    at[0] = __shfl_sync(kWarp, first, lane / 4);
    at[1] = __shfl_sync(kWarp, first, lane / 4 + 8);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (lane % 4 == 0 && query[half] >= 0) {
        support.offsets[first_row + query[half]] = at[half];
        support.counts[first_row + query[half]] = total_[half];
      }
      if (at[half] >= 0) at[half] += before_[half];
    }
  }

 private:
  int total_[2] = {}, before_[2] = {};
  Allocation allocation_;
};

// At once. counts, at: as above.
__device__ __forceinline__ void place_support(const ForwardProblem& p, int head, const int (&query)[2],
                                              const int (&counts)[2], int64_t (&at)[2]) {
  QuadAllocation allocation;
  allocation.ask(p.support, counts);
  allocation.place(p.support, int64_t{head} * p.q_len, query, at);
}

}  // namespace splash::gpu::entmax
