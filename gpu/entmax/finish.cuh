#pragma once
// After the screen: a warp solves its 16 rows on what their lists hold, stores their support and gathers
// their values.

#include "gpu/entmax/allocate.cuh"
#include "gpu/entmax/row_lists.cuh"
#include "gpu/entmax/vectors.cuh"

namespace splash::gpu::entmax {

// The warp's rows of a head; rows that are crowded are left to others.
template <class T, int kPanels, class Lists>
__device__ __forceinline__ void finish_rows(const Problem& p, int head, const Entmax& entmax, Lists& lists) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  raise_bounds(lists, entmax, 40);
  drop_pairs(lists);

  // Lane r < 16 looks after row r.
  const bool is_row = lane < kWarpRows && lists.query[lane] >= 0 && !is_left(lists.bound[lane]);
  const int count = is_row ? lists.count[lane] : 0;
  const int64_t row = int64_t{head} * p.q_len + (is_row ? lists.query[lane] : 0);
  const bool poison = is_row && isnan(lists.bound[lane]);
  if (is_row && p.tau != nullptr)
    p.tau[row] = poison ? NAN : count == 0 ? INFINITY : entmax.gain * lists.bound[lane];
  int64_t offset = -1;
  if (p.support.columns != nullptr) {
    offset = allocate(p.support, count);
    if (is_row) {
      p.support.offsets[row] = offset;
      p.support.counts[row] = count;
    }
  }

  // Scores become probabilities. A quad takes the entries of its two rows.
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = row_of(half), entries = lists.count[r];
    const int64_t first = __shfl_sync(kWarp, offset, r);
    const float bound = lists.bound[r];
    float sum = 0;
    for (int i = lane % 4; i < entries; i += 4) {
      const float excess = entmax.gain * (lists.scores[r][i] - bound), weight = entmax.weight(excess);
      sum += weight;
      lists.scores[r][i] = weight;
      if (first >= 0) {
        p.support.columns[first + i] = lists.keys[r][i];
        p.support.excess[first + i] = excess;
      }
    }
    const float inverse = 1 / quad_sum(sum);
    for (int i = lane % 4; i < entries; i += 4) lists.scores[r][i] *= inverse;
  }
  __syncwarp();

  // Lanes of 8 dimensions each; as many rows at once as fit in the warp, and of each row four values.
  constexpr int kLanes = kPanels == 1 ? 8 : kPanels == 2 ? 16 : 32, kAtOnce = 32 / kLanes;
  const int column = lane % kLanes * 8;
  const T* const values =
      static_cast<const T*>(p.v) + int64_t{head / p.group} * p.kv_len * p.head_dim + column;
#pragma unroll 1
  for (int turn = 0; turn < kWarpRows / kAtOnce; ++turn) {
    const int r = turn * kAtOnce + lane / kLanes, query = lists.query[r], entries = lists.count[r];
    const float bound = lists.bound[r];
    if (query < 0 || column >= p.head_dim || is_left(bound)) continue;
    float sums[8] = {};
#pragma unroll 1
    for (int i = 0; i < entries; i += 4) {
      uint4 value[4];
      float probability[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const bool there = i + j < entries;
        probability[j] = there ? lists.scores[r][i + j] : 0;
        value[j] = there ? load8(values + int64_t{lists.keys[r][i + j]} * p.head_dim) : uint4{};
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) add_scaled<T>(sums, probability[j], value[j]);
    }
    if (isnan(bound)) {
#pragma unroll
      for (float& x : sums) x = NAN;
    }
    store8(static_cast<T*>(p.out) + (int64_t{head} * p.q_len + query) * p.head_dim + column,
           rounded<T>(sums));
  }
}

}  // namespace splash::gpu::entmax
