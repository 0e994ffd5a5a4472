#pragma once
// How a step begins: each block of a team scores the keys of head and tail exactly and bounds each row's
// threshold from below.

#include "gpu/decode/team.cuh"
#include "gpu/decode/unit.cuh"

namespace splash::gpu::decode {

using SampleScores = float[kRows][kSampleKeys];

// Whether the sequence's length and pages exist. Brings the pages into shared memory where they fit. All
// threads of a block call it.
__device__ inline bool sequence_exists(const Step& p, Unit& unit, int length, int32_t (&held)[kHeldPages]) {
  bool bad = length < 0 || length > p.table.width << p.page_shift;
  const int pages = bad ? 0 : (length + p.cache.page_size - 1) >> p.page_shift;
#pragma unroll 8
  for (int i = static_cast<int>(threadIdx.x); i < pages; i += kThreads) {
    const int page = unit.pages[i];
    bad |= page >= p.cache.pages;
    if (i < kHeldPages) held[i] = page;
  }
  bad = __syncthreads_or(bad ? 1 : 0) != 0;
  if (pages <= kHeldPages) unit.pages = held;
  return !bad;
}

constexpr int kLargest = 3;              // scores of head and tail that each lane of a row's warp keeps
constexpr int kBounding = kLargest + 4;  // from which bounds are taken

// Fills scores and bounds, of the block, and `largest`, a lane's own. All threads call it.
template <class T, int kDim>
__device__ void start_unit(const Step& p, const Unit& unit, const Ranges& ranges, const Visible& sees,
                           SampleScores& scores, float (&bounds)[kRows], float (&largest)[kLargest]) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const Queries<T, kDim> q(p, unit, lane);
  // Score the sample: the keys of head, then those of tail. A warp's next chunk is on its way while it scores
  // one.
  const int head_keys = ranges.tail > 0 ? kHeadKeys : 0, sampled = head_keys + ranges.length - ranges.tail;
  const auto key_at = [&](int i) { return i < head_keys ? i : ranges.tail + i - head_keys; };
  const auto page_at = [&](int i) { return i < sampled ? unit.page(p, key_at(i)) : -1; };
  constexpr int kStep = 16 * kWarps;
  int page = page_at(16 * warp), page_ahead = page_at(16 * warp + kStep);
  KeyChunk<T, kDim> next;
  next.load_from_page(p, unit, key_at(16 * warp), page, lane);
  for (int first = 16 * warp; first < sampled; first += kStep) {
    const KeyChunk<T, kDim> now = next;
    const bool is_hole = page < 0;
    page = page_ahead;
    page_ahead = page_at(first + 2 * kStep);
    if (first + kStep < sampled) next.load_from_page(p, unit, key_at(first + kStep), page, lane);
    float d[4];
    now.score(q, d);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = 2 * (lane % 4) + i % 2, at = first + lane / 4 + i / 2 * 8;
      scores[row][at] = !is_hole && at < sampled && sees(i % 2, key_at(at)) ? d[i] : -INFINITY;
    }
  }
  __syncthreads();

  // Bound the threshold of each row by that of the largest scores.
  static_assert(kWarps == kRows);
#pragma unroll
  for (float& slot : largest) slot = -INFINITY;
#pragma unroll
  for (int at = lane; at < kSampleKeys; at += 32) {
    float score = at < sampled ? scores[warp][at] : -INFINITY;
#pragma unroll
    for (float& slot : largest) {
      const float larger = fmaxf(slot, score);
      score = fminf(slot, score);
      slot = larger;
    }
  }
  const Entmax entmax = warp < unit.rows ? unit.entmax(p, warp) : Entmax{};
  Scores<kBounding> bounding;
#pragma unroll
  for (int i = 0; i < kBounding; ++i) bounding.of_lane[i] = i < kLargest ? largest[i] : -INFINITY;
  const float bound = warp < unit.rows && entmax.gain > 0 ? bound_of(entmax, bounding, -INFINITY) : INFINITY;
  if (lane == 0) bounds[warp] = bound;
  __syncthreads();
}

// Lists the keys of head and tail that are above each row's last bound, one row per warp, in one block of a
// team.
__device__ inline void list_sample(const Step& p, const Unit& unit, const Ranges& ranges,
                                   const SampleScores& scores, const float (&bounds)[kRows]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, row = static_cast<int>(threadIdx.x) / 32;
  const int head_keys = ranges.tail > 0 ? kHeadKeys : 0, sampled = head_keys + ranges.length - ranges.tail;
#pragma unroll 1
  for (int is_tail = 0; is_tail < 2; ++is_tail) {
    const int segment = is_tail ? p.segments.count() - 1 : 0, at = unit.index * p.segments.count() + segment;
    const int begin = is_tail ? head_keys : 0, end = is_tail ? sampled : head_keys;
    const int64_t list = int64_t{unit.index} * p.segments.total() + p.segments.first(segment);
    int above = 0;
    float largest = -INFINITY;
    for (int first = begin; first < end && row < unit.rows; first += 32) {
      const int i = first + lane;
      const float score = i < end ? scores[row][i] : -INFINITY;
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
    if (threadIdx.x == 0) p.counts[at] = p.kept[at] = 0;
  }
}

}  // namespace splash::gpu::decode
