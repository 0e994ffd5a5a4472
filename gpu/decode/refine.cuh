#pragma once
// Between screens and after them: refine_bounds scores each row's best keys exactly and raises its bound;
// rescore_segment filters a list by the last bounds and scores what is left exactly.

#include "gpu/decode/start.cuh"
#include "gpu/decode/team.cuh"
#include "gpu/decode/unit.cuh"

namespace splash::gpu::decode {

// Raises the block's bounds, one row per warp. Each is the threshold of up to 32 of the best keys that the
// runs have proposed in this pass, which the warp scores, and of the largest ones of head and tail. All
// threads call it; a barrier must follow.
template <class T, int kDim>
__device__ void refine_bounds(const Step& p, const Unit& unit, const Visible& sees, int length, int runs,
                              int pass, const float (&largest)[kLargest], float (&bounds)[kRows]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, row = static_cast<int>(threadIdx.x) / 32;
  if (row >= unit.rows) return;
  const Queries<T, kDim> q(p, unit, lane);
  const int64_t of_row = (int64_t{unit.index} * kRows + row) * 2 + pass;
  const Best* proposed = p.best + of_row * p.segments.runs * p.best_of_run;
  Best mine{-INFINITY, -1};  // of every 32nd
#pragma unroll 4
  for (int i = lane; i < runs * p.best_of_run; i += 32) {
    const Best other = proposed[i];
    if (other.upper > mine.upper) mine = other;
  }
  Scores<kBounding> bounding;
  float(&scores)[kBounding] = bounding.of_lane;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float d[4];
    const int low = __shfl_sync(kAllLanes, mine.key, 16 * half + lane / 4),
              high = __shfl_sync(kAllLanes, mine.key, 16 * half + lane / 4 + 8);
    score_visible<T, kDim>(p, unit, q, sees, low, high, length, lane, d);
    const bool has_row = lane % 4 == row / 2;
    scores[2 * half] = has_row ? (row % 2 == 0 ? d[0] : d[1]) : -INFINITY;
    scores[2 * half + 1] = has_row ? (row % 2 == 0 ? d[2] : d[3]) : -INFINITY;
  }
#pragma unroll
  for (int i = 0; i < kLargest; ++i) scores[4 + i] = largest[i];
  const float bound = bound_of(unit.entmax(p, row), bounding, bounds[row]);
  if (lane == 0 && bound > bounds[row]) bounds[row] = bound;
}

constexpr int kFiltered = 256;  // keys of a segment that a warp filters and scores at a time

// The warp keeps those of a segment's `listed` keys that are above the bounds, in their order, and scores
// them; the scores that are still above a row's bound it lists for the row. kept: shared memory, the warp's
// own.
template <class T, int kDim>
__device__ void rescore_segment(const Step& p, const Unit& unit, const Queries<T, kDim>& q,
                                const Visible& sees, int length, int segment, int listed,
                                const float (&bounds)[kRows], int32_t (&kept)[kFiltered]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, row = 2 * (lane % 4);
  const int at = unit.index * p.segments.count() + segment;
  const int64_t list = int64_t{unit.index} * p.segments.total() + p.segments.first(segment);
  const int32_t* keys = p.keys + list;
  float* scores = p.scores + list * p.listed_rows;
  int32_t* row_keys = p.row_keys + list * p.listed_rows;
  float largest[2] = {-INFINITY, -INFINITY};
  int above[2] = {}, scored = 0;  // above: of rows `row` and row + 1
  for (int begin = 0; begin < listed; begin += kFiltered) {
    const int end = min(begin + kFiltered, listed);
    int count = 0;
    constexpr int kAhead = 4;
    for (int first = begin; first < end; first += 32 * kAhead) {
      int key[kAhead];
      bool wanted[kAhead] = {};
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int entry = first + 32 * i + lane;
        if (entry >= end) continue;
        key[i] = keys[entry];
#pragma unroll
        for (int pair = 0; pair < kRows; pair += 2) {
          if (pair >= unit.rows) break;
          const float2 upper =
              *reinterpret_cast<const float2*>(scores + int64_t{entry} * p.listed_rows + pair);
          wanted[i] |= !(upper.x <= bounds[pair]) || !(upper.y <= bounds[pair + 1]);
        }
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int place = place_of(wanted[i], lane, count);
        if (wanted[i]) kept[place] = key[i];
      }
    }
    __syncwarp();
    scored += count;
    // The next 16 keys are on their way while these are scored.
    KeyChunk<T, kDim> next;
    const auto load = [&](int first) {
      const int low = first + lane / 4, high = low + 8;
      next.load(unit.key_of<T>(p, p.cache.keys, low < count ? kept[low] : -1, length),
                unit.key_of<T>(p, p.cache.keys, high < count ? kept[high] : -1, length), lane);
    };
    if (count > 0) load(0);
    for (int first = 0; first < count; first += 16) {
      const KeyChunk<T, kDim> now = next;
      if (first + 16 < count) load(first + 16);
      float d[4];
      now.score(q, d);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int entry = first + lane / 4 + i / 2 * 8, key = entry < count ? kept[entry] : -1;
        const bool exists = key >= 0 && unit.page(p, key) >= 0 && sees(i % 2, key);
        if (!exists) d[i] = -INFINITY;
        largest[i % 2] = arch::larger_or_nan(largest[i % 2], d[i]);
        // Of the lanes of one row.
        const bool is_above = d[i] > bounds[row + i % 2];
        const unsigned all = __ballot_sync(kAllLanes, is_above) & 0x11111111u << lane % 4;
        if (is_above) {
          const int64_t to =
              int64_t{above[i % 2] + __popc(all & ((1u << lane) - 1))} * p.listed_rows + row + i % 2;
          scores[to] = d[i];
          row_keys[to] = key;
        }
        above[i % 2] += __popc(all);
      }
    }
    __syncwarp();
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2)
      largest[j] = arch::larger_or_nan(largest[j], __shfl_xor_sync(kAllLanes, largest[j], lanes));
    if (lane < 4) p.found[int64_t{at} * kRows + row + j] = {largest[j], above[j]};
  }
  if (lane == 0) p.kept[at] = scored;
}

}  // namespace splash::gpu::decode
