#pragma once
// Between screens: refine_kernel scores each row's best keys exactly and raises its bound. After the last
// one, rescore_kernel filters the lists by the final bounds and scores what is left exactly.

#include "gpu/decode/unit.cuh"
#include "gpu/entmax/schedule/launch.cuh"

namespace splash::gpu::decode {

constexpr int kRefineThreads = 32 * kRows;

// One block per unit, one warp per row. The bound is the threshold of up to 64 of the best keys of the runs
// [first, end), which the warp scores, and of what start_kernel has listed of head and tail.
template <class T, int kDim>
__global__ void __launch_bounds__(kRefineThreads)
    refine_kernel(const __grid_constant__ Step p, int first, int end) {
  entmax::wait_for_kernels_before();
  const int lane = static_cast<int>(threadIdx.x) % 32, row = static_cast<int>(threadIdx.x) / 32;
  const Unit unit(p, static_cast<int>(blockIdx.x));
  const int length = p.lengths[unit.index], runs = p.segments.early + p.segments.recent;
  if (row >= unit.rows || length <= 0) return;
  const Queries<T, kDim> q(p, unit, lane);
  float scores[11];
#pragma unroll
  for (int pick = 0; pick < 2; ++pick) {
    Best mine{-INFINITY, -1};  // of runs first + 32 pick + lane, and of every 64th after it
    for (int run = first + 32 * pick + lane; run < end; run += 64) {
      const Best best = p.best[(int64_t{unit.index} * runs + run) * kRows + row];
      if (best.upper > mine.upper) mine = best;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float d[4];
      const int low = __shfl_sync(kAllLanes, mine.key, 16 * half + lane / 4),
                high = __shfl_sync(kAllLanes, mine.key, 16 * half + lane / 4 + 8);
      score_visible<T, kDim>(p, unit, q, low, high, length, lane, d);
      const bool has_row = lane % 4 == row / 2;
      scores[4 * pick + 2 * half] = has_row ? (row % 2 == 0 ? d[0] : d[1]) : -INFINITY;
      scores[4 * pick + 2 * half + 1] = has_row ? (row % 2 == 0 ? d[2] : d[3]) : -INFINITY;
    }
  }
  const int64_t list = int64_t{unit.index} * p.segments.total();
  const int tail = p.segments.count() - 1;
  const auto listed = [&](int segment, int entry) {
    const bool exists = entry < p.counts[unit.index * p.segments.count() + segment];
    return exists ? p.scores[(list + p.segments.first(segment) + entry) * p.listed_rows + row] : -INFINITY;
  };
  scores[8] = listed(0, lane);
  scores[9] = listed(tail, lane);
  scores[10] = listed(tail, 32 + lane);
  const float bound = bound_of(unit.entmax(p, row), scores);
  float& best_bound = p.bounds[unit.index * kRows + row];
  if (lane == 0 && bound > best_bound) best_bound = bound;
}

constexpr int kRescoreWarps = 8;

// parts blocks per unit; their warps share the segments.
template <class T, int kDim>
__global__ void __launch_bounds__(32 * kRescoreWarps, 4)
    rescore_kernel(const __grid_constant__ Step p, int parts) {
  entmax::wait_for_kernels_before();
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const Unit unit(p, static_cast<int>(blockIdx.x) / parts);
  const int length = p.lengths[unit.index], part = static_cast<int>(blockIdx.x) % parts;
  const Queries<T, kDim> q(p, unit, lane);
  float bounds[kRows];
#pragma unroll
  for (int row = 0; row < kRows; ++row)
    bounds[row] = row < unit.rows ? p.bounds[unit.index * kRows + row] : INFINITY;
  const int segments = p.segments.count();
  for (int segment = part * kRescoreWarps + warp; segment < segments; segment += parts * kRescoreWarps) {
    const int at = unit.index * segments + segment;
    const int listed = length > 0 ? min(p.counts[at], p.segments.capacity(segment)) : 0;
    const int64_t list = int64_t{unit.index} * p.segments.total() + p.segments.first(segment);
    int32_t* keys = p.keys + list;
    float* scores = p.scores + list * p.listed_rows;
    // Keep the keys above the bounds, in their order.
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
          const float2 upper =
              *reinterpret_cast<const float2*>(scores + int64_t{entry} * p.listed_rows + row);
          wanted |= !(upper.x <= bounds[row]) || !(upper.y <= bounds[row + 1]);
        }
      }
      const int place = place_of(wanted, lane, kept);
      if (wanted) keys[place] = key;
    }
    __syncwarp();
    // Score them.
    float largest[2] = {-INFINITY, -INFINITY};
    for (int first = 0; first < kept; first += 16) {
      const int low = first + lane / 4, high = low + 8;
      float d[4];
      score_visible<T, kDim>(p, unit, q, low < kept ? keys[low] : -1, high < kept ? keys[high] : -1, length,
                             lane, d);
      const int row = 2 * (lane % 4);
      if (row < p.listed_rows) {
        if (low < kept)
          *reinterpret_cast<float2*>(scores + int64_t{low} * p.listed_rows + row) = {d[0], d[1]};
        if (high < kept)
          *reinterpret_cast<float2*>(scores + int64_t{high} * p.listed_rows + row) = {d[2], d[3]};
      }
#pragma unroll
      for (int j = 0; j < 2; ++j)
        largest[j] = arch::larger_or_nan(largest[j], arch::larger_or_nan(d[j], d[j + 2]));
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2)
        largest[j] = arch::larger_or_nan(largest[j], __shfl_xor_sync(kAllLanes, largest[j], lanes));
      if (lane < 4) p.maxima[int64_t{at} * kRows + 2 * lane + j] = largest[j];
    }
    if (lane == 0) p.kept[at] = kept;
  }
}

}  // namespace splash::gpu::decode
