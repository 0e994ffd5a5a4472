#pragma once
// Between screens and after them: refine_bounds scores each row's best keys exactly and raises its bound;
// rescore_segment filters a list by the last bounds and scores what is left exactly.

#include "gpu/decode/start.cuh"
#include "gpu/decode/team.cuh"
#include "gpu/decode/unit.cuh"

namespace splash::gpu::decode {

// Raises the block's bounds, one row per warp. Each is the threshold of up to 32 of the best keys of the
// segments [first, first + count) and of [also, also + count), which the warp scores, and of the largest ones
// of head and tail. All threads call it; a barrier must follow.
template <class T, int kDim>
__device__ void refine_bounds(const Step& p, const Unit& unit, const Queries<T, kDim>& q, const Visible& sees,
                              int length, int first, int also, int count, const float (&largest)[kLargest], float (&bounds)[kRows]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, row = static_cast<int>(threadIdx.x) / 32;
  if (row >= unit.rows) return;
  const int64_t runs = p.segments.early + p.segments.recent;
  const Best* best = p.best + (int64_t{unit.index} * kRows + row) * runs * kBest;
  Best mine{-INFINITY, -1};  // of every 32nd
  const auto look = [&](int segment) {
#pragma unroll 4
    for (int i = lane; i < count * kBest; i += 32) {
      const Best other = best[(segment - 1) * kBest + i];
      if (other.upper > mine.upper) mine = other;
    }
  };
  look(first);
  if (also != first) look(also);
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
  const float bound = bound_of(unit.entmax(p, row), bounding);
  if (lane == 0 && bound > bounds[row]) bounds[row] = bound;
}

// The warp keeps the keys of a segment that are above the bounds, in their order, scores them, and counts those
// whose score is still above.
template <class T, int kDim>
__device__ void rescore_segment(const Step& p, const Unit& unit, const Queries<T, kDim>& q, const Visible& sees,
                                int length, int segment, const float (&bounds)[kRows]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int at = unit.index * p.segments.count() + segment;
  const int listed = min(p.counts[at], p.segments.capacity(segment));
  const int64_t list = int64_t{unit.index} * p.segments.total() + p.segments.first(segment);
  int32_t* keys = p.keys + list;
  float* scores = p.scores + list * p.listed_rows;
  int kept = 0;
  for (int first = 0; first < listed; first += 32) {
    const int entry = first + lane;
    bool wanted = false;
    int key = -1;
    if (entry < listed) {
      key = keys[entry];
#pragma unroll
      for (int row = 0; row < kRows; row += 2) {
        if (row >= unit.rows) break;
        const float2 upper = *reinterpret_cast<const float2*>(scores + int64_t{entry} * p.listed_rows + row);
        wanted |= !(upper.x <= bounds[row]) || !(upper.y <= bounds[row + 1]);
      }
    }
    const int place = place_of(wanted, lane, kept);
    if (wanted) keys[place] = key;
  }
  __syncwarp();
  float largest[2] = {-INFINITY, -INFINITY};
  int above[2] = {};
  for (int first = 0; first < kept; first += 16) {
    const int low = first + lane / 4, high = low + 8;
    float d[4];
    score_visible<T, kDim>(p, unit, q, sees, low < kept ? keys[low] : -1, high < kept ? keys[high] : -1, length,
                           lane, d);
    const int row = 2 * (lane % 4);
    if (row < p.listed_rows) {
      if (low < kept)
        *reinterpret_cast<float2*>(scores + int64_t{low} * p.listed_rows + row) = {d[0], d[1]};
      if (high < kept)
        *reinterpret_cast<float2*>(scores + int64_t{high} * p.listed_rows + row) = {d[2], d[3]};
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      largest[j] = arch::larger_or_nan(largest[j], arch::larger_or_nan(d[j], d[j + 2]));
      above[j] += (d[j] > bounds[row + j] ? 1 : 0) + (d[j + 2] > bounds[row + j] ? 1 : 0);
    }
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2) {
      largest[j] = arch::larger_or_nan(largest[j], __shfl_xor_sync(kAllLanes, largest[j], lanes));
      above[j] += __shfl_xor_sync(kAllLanes, above[j], lanes);
    }
    if (lane < 4) p.found[int64_t{at} * kRows + 2 * lane + j] = {largest[j], above[j]};
  }
  if (lane == 0) p.kept[at] = kept;
}

}  // namespace splash::gpu::decode
