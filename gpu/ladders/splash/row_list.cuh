#pragma once
// A row's list of kept keys and their scores, solved and gathered by a warp.

#include "gpu/ladders/splash/score_tile.cuh"

namespace splash::gpu::sparse {

// Slack of a bound on tau, in z = gain s: covers the rounding of the bound's own sums.
constexpr float kBoundMargin = 1e-5f;
constexpr int kSolveSteps = 26, kBoundSteps = 10;  // halvings of [-1, 0]: to 1.5e-8; enough to drop keys

__device__ __forceinline__ float list_max(const float* scores, int count) {
  float largest = -INFINITY;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < count; i += 32) largest = fmaxf(largest, scores[i]);
  return warp_max(largest);
}

// tau - max z by bisection. The result is a lower bound, at most 2^-steps too small.
__device__ __forceinline__ float bisect(const float* scores, int count, float largest, const Entmax& entmax,
                                        int steps) {
  float low = -1, high = 0;
  for (int step = 0; step < steps; ++step) {
    const float middle = 0.5f * (low + high);
    float sum = 0;
    for (int i = static_cast<int>(threadIdx.x) % 32; i < count; i += 32)
      sum += entmax.weight(entmax.gain * (scores[i] - largest) - middle);
    (warp_sum(sum) >= 1 ? low : high) = middle;
  }
  return low;
}

// A score at or below this bound has p = 0, whatever keys are yet to come, because the tau of some of the
// selected keys is a lower bound on tau. `offset`: tau - max z of these keys.
__device__ __forceinline__ float certified_bound(float largest, float offset, const Entmax& entmax) {
  return largest + __fdividef(offset - kBoundMargin, entmax.gain) - 1e-6f * fabsf(largest);
}

// Keeps the pairs above the bound, in their order; returns how many.
__device__ __forceinline__ int drop_below(float bound, float* scores, int* keys, int count) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int kept = 0;
  for (int first = 0; first < count; first += 32) {
    const bool there = first + lane < count;
    const float score = there ? scores[first + lane] : 0;
    const int key = there ? keys[first + lane] : 0;
    const uint32_t keep = __ballot_sync(kWarp, there && score > bound);
    __syncwarp();  // all have read what others overwrite
    if (keep >> lane & 1) {
      const int place = kept + __popc(keep & ((1u << lane) - 1));
      scores[place] = score;
      keys[place] = key;
    }
    kept += __popc(keep);
    __syncwarp();
  }
  return kept;
}

// Solves for tau, gathers the values and writes the row: zeros if no key is kept, NaN if it is poisoned.
template <class Loads>
__device__ __forceinline__ void finish_row(const Problem& p, const Head& h, const Loads& values,
                                           int64_t first_value, int query, const float* scores,
                                           const int* keys, int count, bool poisoned) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Entmax entmax(h.alpha);
  float sum[4] = {}, total = 0;
  const float largest = list_max(scores, count);
  if (!poisoned && largest > -INFINITY) {
    const float offset = bisect(scores, count, largest, entmax, kSolveSteps);
    for (int first = 0; first < count; first += 32) {
      const bool there = first + lane < count;
      const float weight =
          there ? entmax.weight(entmax.gain * (scores[first + lane] - largest) - offset) : 0.0f;
      total += weight;
      add_values(values, first_value, p.head_dim, weight, there ? keys[first + lane] : 0, sum);
    }
    total = warp_sum(total);
  }
  const float factor = poisoned ? NAN : total > 0 ? 1 / total : 0.0f;
  store_row<Loads::width>(h.out + static_cast<int64_t>(query) * p.head_dim, p.head_dim, factor, sum);
}

}  // namespace splash::gpu::sparse
