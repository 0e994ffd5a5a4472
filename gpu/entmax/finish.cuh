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

// The scores of the lists' pairs in float32, and bounds to match. A row's products with 16 keys at a time on
// the tensor cores, which also multiply them with the 7 queries beside it: those go unused. Lane l holds 16
// bytes of every 64 of the keys i + l / 4 and i + l / 4 + 8, so that a tensor product's 16 dimensions are
// other ones than it takes them for, but the same of q and k.
template <class T, int kPanels, class Lists>
__device__ __forceinline__ void rescore(const Problem& p, int head, Lists& lists,
                                        typename Lists::ExactScores& scores) {
  constexpr int kRows = kPanels == 1 ? 4 : kPanels == 2 ? 2 : 1;  // at once, as registers allow
  constexpr int kChunks = 2 * kPanels;
  const int lane = static_cast<int>(threadIdx.x) % 32, quad = lane / 4;
  const uint32_t bytes = 2 * static_cast<uint32_t>(p.head_dim), at = 16 * static_cast<uint32_t>(lane % 4);
  const auto load = [&](const void* of_head, int row, uint4(&chunks)[kChunks]) {
    const char* const from = static_cast<const char*>(of_head) + at + uint64_t(row) * bytes;
#pragma unroll
    for (int i = 0; i < kChunks; ++i)
      if (at + 64 * i < bytes) chunks[i] = *reinterpret_cast<const uint4*>(from + 64 * i);
  };
  const void* const keys = static_cast<const T*>(p.k) + int64_t{head / p.group} * p.kv_len * p.head_dim;
  const void* const queries = static_cast<const T*>(p.q) + int64_t{head} * p.q_len * p.head_dim;
#pragma unroll 1
  for (int half = 0; half < 2; ++half) {
    uint4 q[kChunks] = {};
    if (lists.count[row_of(half)] > 0) load(queries, lists.query[row_of(half)], q);
#pragma unroll 1
    for (int first = 0; first < kWarpRows / 2; first += kRows) {
      int count[kRows], most = 0;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        count[r] = lists.count[first + r + 8 * half];
        most = max(most, count[r]);
      }
#pragma unroll 1
      for (int i = quad; i < most + quad; i += 16) {
        uint4 key[kRows][2][kChunks] = {};
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int upper = 0; upper < 2; ++upper) {
            const int entry = i + 8 * upper;
            if (entry < count[r]) load(keys, lists.keys[first + r][Lists::place(half, entry)], key[r][upper]);
          }
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          float products[4] = {};  // keys i and i + 8 with two of the eight queries each
#pragma unroll
          for (int c = 0; c < kChunks; ++c) {
            const uint4 &lower = key[r][0][c], &upper = key[r][1][c];
            arch::mma_m16n8k16<T>(products, {lower.x, upper.x, lower.y, upper.y}, q[c].x, q[c].y);
            arch::mma_m16n8k16<T>(products, {lower.z, upper.z, lower.w, upper.w}, q[c].z, q[c].w);
          }
          const int row = first + r;
          if (lane % 4 == row / 2) {
            if (i < count[r]) scores[row][Lists::place(half, i)] = row % 2 == 0 ? products[0] : products[1];
            if (i + 8 < count[r])
              scores[row][Lists::place(half, i + 8)] = row % 2 == 0 ? products[2] : products[3];
          }
        }
      }
    }
  }
  __syncwarp();
  if (lane < kWarpRows) {
    if (!is_left(lists.bound[lane])) lists.bound[lane] *= lists.unit[lane];
    lists.unit[lane] = 1;
  }
  __syncwarp();
}

// Scores and bounds relative to each row's largest score, whose p is at most 1: so that Newton's first step
// is short and rounds little, and sum p = 1 however large scores are.
template <class Lists>
__device__ __forceinline__ void subtract_largest(Lists& lists, typename Lists::ExactScores& scores,
                                                 float gain) {
  const int quad = quad_of_lane(), first = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = row_of(half), count = lists.count[row];
    float largest = -INFINITY;
    for (int i = first; i < count; i += 4) largest = fmaxf(largest, scores[quad][Lists::place(half, i)]);
    largest = quad_max(largest);
    for (int i = first; i < count; i += 4) scores[quad][Lists::place(half, i)] -= largest;
    if (first == 0 && count > 0) {
      lists.bound[row] = fmaxf(lists.bound[row] - largest, bound_of_largest(0, gain));
      lists.pivot[row] = largest;
    }
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
// lists. Not inlined: what the screen's loop has no registers for would be spilled around the loop, and read
// back from L2 here.
template <class T, int kPanels, class Lists>
__device__ __noinline__ void finish_rows(const Problem& p, int head_index, const Head& head, Lists& lists,
                                         typename Lists::ExactScores& scores) {
  const Entmax& entmax = head.entmax;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  rescore<T, kPanels>(p, head_index, lists, scores);
  subtract_largest(lists, scores, entmax.gain);
  raise_bounds(lists, scores, entmax, 40);
  const float bound_of_half[2] = {lists.bound[row_of(0)], lists.bound[row_of(1)]};
  drop_pairs(lists, scores, [&](int half, float score, int) { return score > bound_of_half[half]; });

  // Lane r < 16 looks after row r.
  const bool is_row = lane < kWarpRows && lists.query[lane] >= 0 && !is_left(lists.bound[lane]);
  const int count = is_row ? lists.count[lane] : 0;
  const int64_t row = int64_t{head_index} * p.q_len + (is_row ? lists.query[lane] : 0);
  if (is_row && p.tau != nullptr)
    p.tau[row] = count == 0 ? INFINITY : entmax.gain * (lists.pivot[lane] + lists.bound[lane]);
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
