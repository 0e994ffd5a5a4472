#pragma once
// After the screen: a warp computes the scores of what its 16 rows' lists hold once more, exactly, solves the
// rows, stores their support and gathers their values.

#include "gpu/entmax/allocate.cuh"
#include "gpu/entmax/row_lists.cuh"
#include "gpu/entmax/vectors.cuh"

namespace splash::gpu::entmax {

// A row of q, k, v or out as the lanes of a warp share it: kLanes lanes, each two times 8 dimensions; as many
// rows at once as fit in the warp.
template <int kPanels>
struct RowLanes {
  static constexpr int kLanes = kPanels == 1 ? 4 : kPanels == 2 ? 8 : 16, kAtOnce = 32 / kLanes;
  int first, row;  // this lane among those of its row, and the row among those at once
  uint32_t bytes;  // of a row in memory
  uint32_t at[2];  // this lane's bytes
  bool inside[2];  // whether there are such

  explicit __device__ __forceinline__ RowLanes(const Problem& p)
      : first(static_cast<int>(threadIdx.x) % kLanes),
        row(static_cast<int>(threadIdx.x) % 32 / kLanes),
        bytes(2 * static_cast<uint32_t>(p.head_dim)) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const auto column = static_cast<uint32_t>(8 * (first + kLanes * i));
      inside[i] = 2 * column < bytes;
      at[i] = inside[i] ? 2 * column : 0;
    }
  }
  // Of a head's row: chunk 0 or 1.
  __device__ __forceinline__ uint4 load(const void* head, uint32_t of, int i) const {
    return *reinterpret_cast<const uint4*>(static_cast<const char*>(head) + at[i] + uint64_t{of} * bytes);
  }
  __device__ __forceinline__ void store(void* head, uint32_t of, int i, const uint4& chunk) const {
    if (inside[i]) *reinterpret_cast<uint4*>(static_cast<char*>(head) + at[i] + uint64_t{of} * bytes) = chunk;
  }
};

// Of four values a lane each one's sum over kLanes lanes: lane l has value l % 4 then.
template <int kLanes>
__device__ __forceinline__ float sum_of_four(const float (&x)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool upper = lane & 2, odd = lane & 1;
  const float a = (upper ? x[2] : x[0]) + __shfl_xor_sync(kWarp, upper ? x[0] : x[2], 2);
  const float b = (upper ? x[3] : x[1]) + __shfl_xor_sync(kWarp, upper ? x[1] : x[3], 2);
  float sum = (odd ? b : a) + __shfl_xor_sync(kWarp, odd ? a : b, 1);
#pragma unroll
  for (int lanes = 4; lanes < kLanes; lanes *= 2) sum += __shfl_xor_sync(kWarp, sum, lanes);
  return sum;
}

// The scores of the lists' pairs in float32, and bounds to match.
template <class T, int kPanels, class Lists>
__device__ __forceinline__ void rescore(const Problem& p, int head, Lists& lists,
                                        typename Lists::ExactScores& scores) {
  const RowLanes<kPanels> lanes(p);
  const void* const keys = static_cast<const T*>(p.k) + int64_t{head / p.group} * p.kv_len * p.head_dim;
  const void* const queries = static_cast<const T*>(p.q) + int64_t{head} * p.q_len * p.head_dim;
#pragma unroll 1
  for (int first = 0; first < kWarpRows; first += lanes.kAtOnce) {
    const int row = first + lanes.row, quad = row % 8, half = row / 8, entries = lists.count[row];
    uint4 q[2] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (entries > 0 && lanes.inside[i]) q[i] = lanes.load(queries, lists.query[row], i);
    }
    const int most = __reduce_max_sync(kWarp, entries);
#pragma unroll 1
    for (int i = 0; i < most; i += 4) {
      uint4 key[4][2];
      float part[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {  // beyond the last entry any key will do: they are finite
        const int of_entry = i + j < entries ? lists.keys[quad][Lists::place(half, i + j)] : 0;
        key[j][0] = lanes.load(keys, of_entry, 0);
        key[j][1] = lanes.load(keys, of_entry, 1);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) part[j] = dot8<T>(q[0], key[j][0]) + dot8<T>(q[1], key[j][1]);
      const float score = sum_of_four<lanes.kLanes>(part);
      const int entry = i + lanes.first;
      if (lanes.first < 4 && entry < entries) scores[quad][Lists::place(half, entry)] = score;
    }
  }
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane < kWarpRows) {
    if (!is_left(lists.bound[lane])) lists.bound[lane] *= lists.unit[lane];
    lists.unit[lane] = 1;
  }
  __syncwarp();
}

// Sums the rows' values, weighted by their probabilities.
template <class T, int kPanels, class Lists>
__device__ __forceinline__ void gather_values(const Problem& p, int head, const Lists& lists,
                                              const typename Lists::ExactScores& probabilities) {
  const RowLanes<kPanels> lanes(p);
  const void* const values = static_cast<const T*>(p.v) + int64_t{head / p.group} * p.kv_len * p.head_dim;
  void* const out = static_cast<T*>(p.out) + int64_t{head} * p.q_len * p.head_dim;
#pragma unroll 1
  for (int first = 0; first < kWarpRows; first += lanes.kAtOnce) {
    const int row = first + lanes.row, quad = row % 8, half = row / 8;
    const int query = lists.query[row], entries = lists.count[row];
    if (query < 0 || is_left(lists.bound[row])) continue;
    float sums[2][8] = {};
#pragma unroll 1
    for (int i = 0; i < entries; i += 4) {
      uint4 value[4][2];
      float probability[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const bool there = i + j < entries;
        const int at = Lists::place(half, there ? i + j : 0), key = there ? lists.keys[quad][at] : 0;
        probability[j] = there ? probabilities[quad][at] : 0;
#pragma unroll
        for (int c = 0; c < 2; ++c) value[j][c] = there ? lanes.load(values, key, c) : uint4{};
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) add_scaled<T>(sums[c], probability[j], value[j][c]);
      }
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) lanes.store(out, query, c, rounded<T>(sums[c]));
  }
}

// The warp's rows of a head; rows that are left to others are not touched. scores: room for those of the
// lists.
template <class T, int kPanels, class Lists>
__device__ __forceinline__ void finish_rows(const Problem& p, int head_index, const Head& head, Lists& lists,
                                            typename Lists::ExactScores& scores) {
  const Entmax& entmax = head.entmax;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  rescore<T, kPanels>(p, head_index, lists, scores);
  raise_bounds(lists, scores, entmax, 40);
  const float bound_of_half[2] = {lists.bound[row_of(0)], lists.bound[row_of(1)]};
  drop_pairs(lists, scores, [&](int half, float score, int) { return score > bound_of_half[half]; });

  // Lane r < 16 looks after row r.
  const bool is_row = lane < kWarpRows && lists.query[lane] >= 0 && !is_left(lists.bound[lane]);
  const int count = is_row ? lists.count[lane] : 0;
  const int64_t row = int64_t{head_index} * p.q_len + (is_row ? lists.query[lane] : 0);
  if (is_row && p.tau != nullptr) p.tau[row] = count == 0 ? INFINITY : entmax.gain * lists.bound[lane];
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
    const int entries = lists.count[row_of(half)], quad = quad_of_lane();
    const int64_t first = __shfl_sync(kWarp, offset, row_of(half));
    const float bound = lists.bound[row_of(half)];
    float sum = 0;
    for (int i = lane % 4; i < entries; i += 4) {
      const int at = Lists::place(half, i);
      const float excess = entmax.gain * (scores[quad][at] - bound), weight = entmax.weight(excess);
      sum += weight;
      scores[quad][at] = weight;
      if (first >= 0) {
        p.support.columns[first + i] = lists.keys[quad][at];
        p.support.excess[first + i] = excess;
      }
    }
    const float inverse = 1 / quad_sum(sum);
    for (int i = lane % 4; i < entries; i += 4) scores[quad][Lists::place(half, i)] *= inverse;
  }
  __syncwarp();
  gather_values<T, kPanels>(p, head_index, lists, scores);
}

}  // namespace splash::gpu::entmax
