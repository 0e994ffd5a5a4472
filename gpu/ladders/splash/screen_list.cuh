#pragma once
// Lists of candidates during the screen: one a row, in shared memory, kept by the four lanes (a quad) that
// hold the row in wgmma's layout. The eight quads of a warp work in step, each on its own row.

#include "gpu/ladders/splash/rows.cuh"

namespace splash::gpu::sparse {

constexpr int kCandidates = 56, kCandidatePitch = 60;  // eight rows lie in different banks
constexpr int kUncounted = INT32_MIN;  // set in a key: more of its block were listed than may be kept

struct CandidateRow {
  float* scores;
  int* keys;
};

template <class T>
__device__ __forceinline__ T quad_sum(T x) {
  x += __shfl_xor_sync(kWarp, x, 1);
  return x + __shfl_xor_sync(kWarp, x, 2);
}
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kWarp, x, 1));
  return fmaxf(x, __shfl_xor_sync(kWarp, x, 2));
}

// Calls use(i) for i = 0, 1, ... in strides of four until every quad's list is through; i may lie past the
// quad's own.
template <class Use>
__device__ __forceinline__ void for_each_four(int count, const Use& use) {
  const int longest = __reduce_max_sync(kWarp, count);
  for (int i = quad_lane(); i - quad_lane() < longest; i += 4) use(i);
}

// Keeps the entries that keep(i) holds for, in their order.
template <class Keep>
__device__ __forceinline__ void compact(const CandidateRow& row, int& count, const Keep& keep) {
  int kept = 0;
  for_each_four(count, [&](int i) {
    const bool mine = i < count && keep(i);
    const float score = mine ? row.scores[i] : 0;
    const int key = mine ? row.keys[i] : 0;
    const uint32_t quad = __ballot_sync(kWarp, mine) >> (threadIdx.x % 32 & ~3u) & 15;
    __syncwarp();  // all have read what others overwrite
    if (mine) {
      const int place = kept + __popc(quad & ((1u << quad_lane()) - 1));
      row.scores[place] = score;
      row.keys[place] = key;
    }
    kept += __popc(quad);
    __syncwarp();
  });
  count = kept;
}

// tau - max z of the entries that weigh, from `start` >= -1 with sum >= 1: Newton, which rises to tau and
// never passes it where 1 < alpha <= 2, else bisection from below. z = gain * score here; largest: the
// largest score that weighs.
template <class Weighs>
__device__ __forceinline__ float solve_quad(const CandidateRow& row, int count, const Entmax& entmax,
                                            float gain, float largest, float start, int steps,
                                            const Weighs& weighs) {
  const bool convex = entmax.gain <= 1;
  float low = start, high = 0, offset = start;
  for (int step = 0; step < (convex ? steps : 26); ++step) {
    float sum = 0, slope = 0;
    for_each_four(count, [&](int i) {
      if (i >= count || !weighs(i)) return;
      const float u = gain * (row.scores[i] - largest) - offset;
      sum += entmax.weight(u);
      slope += entmax.slope(u);
    });
    sum = quad_sum(sum);
    slope = entmax.beta * quad_sum(slope);
    (sum >= 1 ? low : high) = offset;
    const float next = !convex     ? 0.5f * (low + high)
                       : slope > 0 ? fmaxf(offset, offset + __fdividef(sum - 1, slope))
                                   : offset;
    const bool moved = fabsf(next - offset) > 6e-8f;
    offset = next;
    if (!__any_sync(kWarp, moved)) break;
  }
  return convex ? offset : low;
}

}  // namespace splash::gpu::sparse
