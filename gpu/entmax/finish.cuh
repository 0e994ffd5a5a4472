#pragma once
// After the screen: a warp solves its 16 rows on what their lists hold, stores their support and gathers
// their values.

#include "gpu/entmax/candidates.cuh"
#include "gpu/entmax/vectors.cuh"

namespace splash::gpu::entmax {

// Space for the entries of 16 rows, whose quads hold `count` (all lanes the same) of their two rows: the
// address of this quad's entries, or -1 where the store is full.
__device__ __forceinline__ void allocate(const Support& support, const int (&count)[2],
                                         int64_t (&offset)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int before[2], total = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int sum = lane % 4 == 0 ? count[half] : 0;
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      const int lower = __shfl_up_sync(kWarp, sum, lanes);
      if (lane >= lanes) sum += lower;
    }
    before[half] = total + sum - count[half];
    total += __shfl_sync(kWarp, sum, 31);
  }
  unsigned long long base = 0;
  if (lane == 0) base = atomicAdd(support.used, static_cast<unsigned long long>(total));
  base = __shfl_sync(kWarp, base, 0);
  const bool fits = base + total <= static_cast<unsigned long long>(support.capacity);
#pragma unroll
  for (int half = 0; half < 2; ++half) offset[half] = fits ? static_cast<int64_t>(base) + before[half] : -1;
}

// The rows first_query to first_query + 15 of a head, by one warp.
template <class T, int kPanels, class Lists>
__device__ __forceinline__ void finish_rows(const Problem& p, int head, int first_query, const Entmax& entmax,
                                            Lists& lists, Rows& rows) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  raise_bounds(lists, entmax, 40, rows);
  drop_pairs(lists, 0, 0, rows);

  float inverse[2];
  int total[2], before[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = 0;
    for (int i = 0; i < rows.count[half]; ++i)
      sum += entmax.weight(entmax.gain * (lists.scores[half][i][thread] - rows.bound[half]));
    inverse[half] = 1 / quad_sum(sum);
    int upto = rows.count[half];
    int lower = __shfl_up_sync(kWarp, upto, 1, 4);
    if (lane % 4 >= 1) upto += lower;
    lower = __shfl_up_sync(kWarp, upto, 2, 4);
    if (lane % 4 >= 2) upto += lower;
    before[half] = upto - rows.count[half];
    total[half] = __shfl_sync(kWarp, upto, 3, 4);
  }
  int64_t offset[2] = {-1, -1};
  if (p.support.columns != nullptr) allocate(p.support, total, offset);

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = first_query + lane / 4 + 8 * half;
    const int64_t row = int64_t{head} * p.q_len + query;
    for (int i = 0; i < rows.count[half]; ++i) {  // scores become probabilities
      float& score = lists.scores[half][i][thread];
      const float excess = entmax.gain * (score - rows.bound[half]);
      if (offset[half] >= 0) {
        p.support.columns[offset[half] + before[half] + i] = lists.keys[half][i][thread];
        p.support.excess[offset[half] + before[half] + i] = excess;
      }
      score = entmax.weight(excess) * inverse[half];
    }
    if (lane % 4 != 0 || query >= p.q_len) continue;
    if (rows.status[half] == RowStatus::crowded) {
      p.crowded_rows[atomicAdd(p.crowded_count, 1)] = row;
      continue;
    }
    const bool poisoned = rows.status[half] == RowStatus::poisoned;
    if (p.tau != nullptr)
      p.tau[row] = poisoned ? NAN : total[half] == 0 ? INFINITY : entmax.gain * rows.bound[half];
    if (p.support.columns != nullptr) {
      p.support.offsets[row] = offset[half];
      p.support.counts[row] = total[half];
    }
  }
  __syncwarp();

  // Lanes of 8 dimensions each; as many rows at once as fit in the warp, and of each row four values.
  constexpr int kLanes = kPanels == 1 ? 8 : kPanels == 2 ? 16 : 32, kAtOnce = 32 / kLanes;
  const int column = lane % kLanes * 8;
  const T* const values =
      static_cast<const T*>(p.v) + int64_t{head / p.group} * p.kv_len * p.head_dim + column;
#pragma unroll 1
  for (int turn = 0; turn < 16 / kAtOnce; ++turn) {
    const int row = turn * kAtOnce + lane / kLanes, half = row / 8, query = first_query + row;
    int count[4], status = 0, most = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int of_first = __shfl_sync(kWarp, rows.count[0], row % 8 * 4 + i);
      const int of_second = __shfl_sync(kWarp, rows.count[1], row % 8 * 4 + i);
      count[i] = half == 0 ? of_first : of_second;
      most = max(most, count[i]);
    }
    const int of_first = __shfl_sync(kWarp, static_cast<int>(rows.status[0]), row % 8 * 4);
    const int of_second = __shfl_sync(kWarp, static_cast<int>(rows.status[1]), row % 8 * 4);
    status = half == 0 ? of_first : of_second;
    if (query >= p.q_len || column >= p.head_dim || status == static_cast<int>(RowStatus::crowded)) continue;
    float sums[8] = {};
    const int first_thread = thread - lane + row % 8 * 4;
#pragma unroll 1
    for (int i = 0; i < most; ++i) {
      uint4 value[4];
      float probability[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const bool there = i < count[j];
        probability[j] = there ? lists.scores[half][i][first_thread + j] : 0;
        value[j] =
            there ? load8(values + int64_t{lists.keys[half][i][first_thread + j]} * p.head_dim) : uint4{};
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) add_scaled<T>(sums, probability[j], value[j]);
    }
    if (status == static_cast<int>(RowStatus::poisoned)) {
#pragma unroll
      for (float& x : sums) x = NAN;
    }
    store8(static_cast<T*>(p.out) + (int64_t{head} * p.q_len + query) * p.head_dim + column,
           rounded<T>(sums));
  }
}

}  // namespace splash::gpu::entmax
