#pragma once
// The first kernel of a step: one block per unit scores the keys of head and tail exactly, bounds each row's
// threshold from below, and lists those keys that are above the bound. It also checks the sequence's length
// and pages.

#include "gpu/decode/unit.cuh"
#include "gpu/entmax/schedule/launch.cuh"

namespace splash::gpu::decode {

constexpr int kStartThreads = 256;

template <class T, int kDim>
__global__ void __launch_bounds__(kStartThreads, 4) start_kernel(Step p) {
  entmax::wait_for_kernels_before();
  __shared__ float scores[kRows][kSampleKeys];
  __shared__ float bounds[kRows];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const Unit unit(p, static_cast<int>(blockIdx.x));

  // Check the length and the pages.
  int length = p.table.lengths[unit.sequence];
  const bool bad_length = length < 0 || length > p.table.width * p.cache.page_size;
  if (bad_length) length = 0;
  bool bad = bad_length;
  for (int i = thread; i * p.cache.page_size < length; i += kStartThreads)
    bad |= unit.page(p, i * p.cache.page_size) >= p.cache.pages;
  bad = __syncthreads_or(bad ? 1 : 0) != 0;
  if (bad) length = 0;
  if (thread == 0) {
    p.lengths[unit.index] = bad ? -1 : length;
    p.overflowed[unit.index] = 0;
  }

  // Score the sample: the keys of head, then those of tail.
  const Ranges ranges(length, p.cache.page_size);
  const int head_keys = ranges.tail > 0 ? kHeadKeys : 0, sampled = head_keys + length - ranges.tail;
  const auto key_at = [&](int i) {
    return i < head_keys ? i : i < sampled ? ranges.tail + i - head_keys : -1;
  };
  const Queries<T, kDim> q(p, unit, lane);
  for (int first = 16 * warp; first < sampled; first += kStartThreads / 2) {
    float d[4];
    const int low = first + lane / 4;
    score_visible<T, kDim>(p, unit, q, key_at(low), key_at(low + 8), length, lane, d);
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[2 * (lane % 4) + i % 2][low + i / 2 * 8] = d[i];
  }
  __syncthreads();

  // Bound the threshold of each row.
  if (warp < kRows) {
    float of_lane[kSampleKeys / 32];
#pragma unroll
    for (int i = 0; i < kSampleKeys / 32; ++i) {
      const int at = 32 * i + lane;
      of_lane[i] = at < sampled ? scores[warp][at] : -INFINITY;
    }
    const Entmax entmax = warp < unit.rows ? unit.entmax(p, warp) : Entmax{};
    const float bound = warp < unit.rows && entmax.gain > 0 ? bound_of(entmax, of_lane) : INFINITY;
    if (lane == 0) p.bounds[unit.index * kRows + warp] = bounds[warp] = bound;
  }
  __syncthreads();

  // List what is above it.
  if (warp < 2) {
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
