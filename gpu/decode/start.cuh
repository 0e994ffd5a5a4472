#pragma once
// How a step begins: each block of a team scores the keys of head and tail exactly and bounds each row's
// threshold from below; the first block also lists those keys that are above the bound.

#include "gpu/decode/team.cuh"
#include "gpu/decode/unit.cuh"

namespace splash::gpu::decode {

using SampleScores = float[kRows][kSampleKeys];

// Whether the sequence's length and pages exist. Brings the pages into shared memory where they fit. All threads
// of a block call it.
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

// Fills bounds, of the block, and `largest`, a lane's own. All threads call it; lists: in one block of the team.
template <class T, int kDim>
__device__ void start_unit(const Step& p, const Unit& unit, const Ranges& ranges, const Visible& sees, SampleScores& scores, float (&bounds)[kRows],
                           float (&largest)[kLargest], bool lists) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const Queries<T, kDim> q(p, unit, lane);
  // Score the sample: the keys of head, then those of tail. A warp's next chunk is on its way while it scores one.
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

  // List what is above it.
  if (lists && warp < 2) {
    const int segment = warp == 0 ? 0 : p.segments.count() - 1;
    const int begin = warp == 0 ? 0 : head_keys, end = warp == 0 ? head_keys : sampled;
    const int64_t list = int64_t{unit.index} * p.segments.total() + p.segments.first(segment);
    int count = 0;
    for (int first = begin; first < end; first += 32) {
      const int at = first + lane;
      bool wanted = false;
      if (at < end) {
        for (int row = 0; row < unit.rows; ++row) wanted |= !(scores[row][at] <= bounds[row]);
      }
      const int place = place_of(wanted, lane, count);
      if (wanted) {
        p.keys[list + place] = key_at(at);
        for (int row = 0; row < p.listed_rows; ++row)
          p.scores[(list + place) * p.listed_rows + row] = row < unit.rows ? scores[row][at] : -INFINITY;
      }
    }
    if (lane == 0) p.counts[unit.index * p.segments.count() + segment] = count;
  }
}

}  // namespace splash::gpu::decode
