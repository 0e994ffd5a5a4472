#pragma once
// How a step begins: each block of a team reads what belongs to the unit, and scores the keys of head and
// tail exactly.

#include "gpu/decode/team.cuh"
#include "gpu/decode/unit.cuh"

namespace splash::gpu::decode {

// Exact scores of head and tail, in a block's shared memory: [listed_rows, sample_keys()].
struct SampleScores {
  float* of;
  int stride, rows;

  __device__ float* row(int row) const { return of + row * stride; }
};

// What each block of a team holds of its unit.
template <class T, int kDim>
struct HeldUnit {
  Entmax entmax[kRows];
  HeldQueries<T, kDim> queries;
};

// Reads the unit's pages, queries, alpha and scale, in one trip to memory: none waits for another, nor for
// the length. Returns the length, -1 where it or a page does not exist. `pages`: room for p.held_pages. All
// threads of a block call it.
template <class T, int kDim, int kBlockThreads = kThreads>
__device__ __forceinline__ int read_unit(const Step& p, Unit& unit, HeldUnit<T, kDim>& held, int32_t* pages) {
  const int thread = static_cast<int>(threadIdx.x);
  using Rows = HeldQueries<T, kDim>;
  constexpr int kPages = kHeldPages / kBlockThreads,
                kQueryLoads = (Rows::kLoads + kBlockThreads - 1) / kBlockThreads;
  const int length = p.table.lengths[unit.sequence];
  uint4 queries[kQueryLoads];
#pragma unroll
  for (int i = 0; i < kQueryLoads; ++i) queries[i] = Rows::load(p, unit, thread + i * kBlockThreads);
  // Whose alpha and scale the thread reads: the row's that it has the first channels of, where these are
  // scaled.
  const int row = !kIsFp8<T> ? thread : thread % Rows::kChunks == 0 ? thread / Rows::kChunks : kRows;
  Entmax entmax{};
  if (row < unit.rows) entmax = unit.entmax(p, row);
  int32_t of_thread[kPages];
#pragma unroll
  for (int i = 0; i < kPages; ++i) {
    const int at = thread + i * kBlockThreads;
    of_thread[i] = at < p.held_pages ? unit.pages[at] : -1;
  }

  bool bad = length < 0 || length > p.table.width << p.page_shift;
  const int count = bad ? 0 : (length + p.cache.page_size - 1) >> p.page_shift;
#pragma unroll
  for (int i = 0; i < kPages; ++i) {
    const int at = thread + i * kBlockThreads;
    if (at < p.held_pages) pages[at] = of_thread[i];
    bad |= at < count && of_thread[i] >= p.cache.pages;
  }
#pragma unroll 8
  for (int at = p.held_pages + thread; at < count; at += kBlockThreads)
    bad |= unit.pages[at] >= p.cache.pages;
  if (p.held_pages > 0) unit.pages = pages;
  if constexpr (kIsFp8<T>) {
    static_assert(kQueryLoads == 1);
    float restore = 1;
    queries[0] = scaled_query<Rows::kChunks>(p.cache.dtype, queries[0], restore);
    if (row < unit.rows) scale_gain(p, restore, entmax);
  }
#pragma unroll
  for (int i = 0; i < kQueryLoads; ++i) held.queries.store(thread + i * kBlockThreads, queries[i]);
  if (row < kRows) held.entmax[row] = entmax;
  return __syncthreads_or(bad ? 1 : 0) != 0 ? -1 : length;
}

// What the dense pass and the caller see of a unit before it is screened. `bits`: of Step::overflowed, where
// it was not broad.
__device__ __forceinline__ void start_outputs(const Step& p, const Unit& unit, const Ranges& ranges,
                                              bool is_broad, uint32_t bits) {
  p.overflowed[unit.index] = is_broad ? (1u << unit.rows) - 1 : bits;
  if (p.outputs.counts == nullptr) return;
  const int head = ranges.first_tile == 0 ? kHeadKeys : 0;
  const int screened = max((ranges.tiles - ranges.first_tile) * ranges.tile_keys - head, 0);
  int32_t* const counts = p.outputs.counts + unit.index * 4;
  counts[0] = is_broad ? 0 : screened;
  counts[1] = counts[2] = 0;
  counts[3] = is_broad ? 1 : 0;
}

constexpr int kLargest = 3;              // scores of head and tail that each lane of a row's warp keeps
constexpr int kBounding = kLargest + 4;  // from which bounds are taken

// How many keys head and tail hold, and the i'th of them: those of head come first.
__device__ __forceinline__ int sampled_keys(const Ranges& ranges) {
  return (ranges.tail > 0 ? kHeadKeys : 0) + ranges.length - ranges.tail;
}
__device__ __forceinline__ int sampled_key(const Ranges& ranges, int i) {
  const int head_keys = ranges.tail > 0 ? kHeadKeys : 0;
  return i < head_keys ? i : ranges.tail + i - head_keys;
}

// 16 of them, on their way.
template <class T, int kDim>
struct SampleKeys {
  KeyChunk<T, kDim> chunk;
  int page;  // -1: none of them exists

  // From the i'th on.
  __device__ __forceinline__ void load(const Step& p, const Unit& unit, const Ranges& ranges, int i,
                                       int lane) {
    page = i < sampled_keys(ranges) ? unit.page(p, sampled_key(ranges, i)) : -1;
    chunk.load_from_page(p, unit, sampled_key(ranges, i), page, lane);
  }
};

// Scores the keys of head, then those of tail, for the block, and keeps the largest of a warp's row, each
// lane its own. A row's base is the largest score less 1. keys: the warp's first. All threads call it.
template <int kBlockWarps = kWarps, class T, int kDim>
__device__ void score_sample(const Step& p, const Unit& unit, const HeldUnit<T, kDim>& held,
                             const Ranges& ranges, SampleKeys<T, kDim>& keys, const Visible& sees,
                             const SampleScores& scores, float (&largest)[kLargest], RowBounds& rows) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const Queries<T, kDim> q(held.queries, lane);
  const int sampled = sampled_keys(ranges);
#pragma unroll 1
  for (int first = 16 * warp; first < sampled; first += 16 * kBlockWarps) {
    float d[4];
    keys.chunk.score(q, d);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = 2 * (lane % 4) + i % 2, at = first + lane / 4 + i / 2 * 8;
      if (row < scores.rows && at < sampled)
        scores.row(row)[at] = keys.page >= 0 && sees(i % 2, sampled_key(ranges, at)) ? d[i] : -INFINITY;
    }
    if (first + 16 * kBlockWarps < sampled) keys.load(p, unit, ranges, first + 16 * kBlockWarps, lane);
  }
  __syncthreads();
#pragma unroll
  for (float& slot : largest) slot = -INFINITY;
  for (int at = lane; at < sampled && warp < scores.rows; at += 32) {
    float score = scores.row(warp)[at];
#pragma unroll
    for (float& slot : largest) {
      const float larger = fmaxf(slot, score);
      score = fminf(slot, score);
      slot = larger;
    }
  }
  if (warp < kRows) {
    const float z = held.entmax[warp].gain * arch::warp_max(largest[0]);
    if (lane == 0) rows.bases[warp] = z - (1 + 0x1p-18f * (1 + fabsf(z)));
  }
  __syncthreads();
}

// Lists the keys of head and tail that are above each row's last bound, in one block of a team. A warp has a
// row; of few rows, its head or its tail alone.
__device__ inline void list_sample(const Step& p, const Unit& unit, const Ranges& ranges,
                                   const SampleScores& scores, const float (&bounds)[kRows]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int head_keys = ranges.tail > 0 ? kHeadKeys : 0, sampled = sampled_keys(ranges);
  constexpr int kFewRows = kWarps / 2;
  const bool is_shared = unit.rows <= kFewRows;
  const int row = is_shared ? warp % kFewRows : warp;
#pragma unroll 1
  for (int is_tail = is_shared ? warp / kFewRows : 0; is_tail < 2; is_tail += is_shared ? 2 : 1) {
    const int segment = is_tail ? p.segments.count() - 1 : 0, at = unit.index * p.segments.count() + segment;
    const int begin = is_tail ? head_keys : 0, end = is_tail ? sampled : head_keys;
    const int64_t list = int64_t{unit.index} * p.segments.total() + p.segments.first(segment);
    int above = 0;
    float largest = -INFINITY;
    for (int first = begin; first < end && row < unit.rows; first += 32) {
      const int i = first + lane;
      const float score = i < end ? scores.row(row)[i] : -INFINITY;
      largest = arch::larger_or_nan(largest, score);
      const int place = place_of(score > bounds[row], lane, above);
      if (score > bounds[row]) {
        const int64_t to = (list + place) * p.listed_rows + row;
        p.scores[to] = score;
        p.row_keys[to] = (is_tail ? ranges.tail - head_keys : 0) + i;
      }
    }
    largest = arch::warp_max_or_nan(largest);
    if (lane == 0) p.found[int64_t{at} * kRows + row] = {largest, above};
    if (lane == 0 && row == 0) p.counts[at] = p.kept[at] = 0;
  }
}

}  // namespace splash::gpu::decode
