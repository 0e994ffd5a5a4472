#pragma once
// Lists of candidates during the screen: one per row, in shared memory. The four lanes (a quad) that hold a
// row in wgmma's layout own its list; lane l holds rows l / 4 and l / 4 + 8 of the warp's 16. Quads run in
// lockstep.

#include "gpu/ladders/splash/rows.cuh"

namespace splash::gpu::sparse {

constexpr int kCandidates = 56, kCandidatePitch = 60;  // eight rows lie in different banks

// What a quad knows of one of its rows. A product is <q, k> with the sign of the scale.
struct ScreenRow {
  int* keys;        // groups of 64 keys in rising order
  float* scores;    // scale * (<q, k> - reference), exact, of the first `scored` entries; later weights
  float margin;     // the largest error of a screened product
  float bound;      // exact products at or below it have p = 0; +inf: the row is left to exact_row
  float reference;  // near the largest product
  float anchor;     // 1.5 times a power of two, at least 3 |q| |k|: see score_entries
  int count = 0, scored = 0;
  int trigger = kCandidates - 16;  // a list that exceeds this count raises the bound

  __device__ __forceinline__ bool lost() const { return bound == INFINITY; }
  __device__ __forceinline__ void give_up() {
    count = scored = 0;
    bound = INFINITY;
  }
};

using arch::quad_max;
using arch::quad_sum;
// Lane l of the quad returns the sum of x[l] over the quad's lanes.
__device__ __forceinline__ float quad_sums(const float (&x)[4]) {
  const bool odd = (quad_lane() & 1) != 0, upper = (quad_lane() & 2) != 0;
  const float low = (odd ? x[1] : x[0]) + __shfl_xor_sync(kWarp, odd ? x[0] : x[1], 1);
  const float high = (odd ? x[3] : x[2]) + __shfl_xor_sync(kWarp, odd ? x[2] : x[3], 1);
  return (upper ? high : low) + __shfl_xor_sync(kWarp, upper ? low : high, 2);
}

// Calls use(i) for i = 0, 1, ... in strides of four until the longest list of all quads ends; i may lie past
// the end of the quad's own list.
template <class Use>
__device__ __forceinline__ void for_each_four(int count, const Use& use) {
  const int longest = __reduce_max_sync(kWarp, count);
#pragma unroll 1
  for (int i = quad_lane(); i - quad_lane() < longest; i += 4) use(i);
}

// Keeps the entries that keep(i) holds for, in their order.
template <class Keep>
__device__ __forceinline__ void compact(ScreenRow& row, const Keep& keep) {
  int kept = 0;
  for_each_four(row.count, [&](int i) {
    const bool mine = i < row.count && keep(i);
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
  row.count = row.scored = kept;
}

// Solves for tau - max z of two rows per quad, from offsets >= -1 at which the sums are >= 1. Newton rises to
// tau and never passes it if 1 < alpha <= 2; otherwise bisection from below. for_each(half, use) calls use(z
// - max z) for the lane's share of a row.
template <bool kSquare, class ForEach>
__device__ __forceinline__ void solve_weights(const Entmax& entmax, int steps, float (&offset)[2],
                                              const ForEach& for_each) {
  const bool convex = kSquare || entmax.gain <= 1;
  float low[2] = {offset[0], offset[1]}, high[2] = {};
#pragma unroll 1
  for (int step = 0; step < (convex ? steps : 26); ++step) {
    bool moved = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float& x = offset[half];
      float sum = 0, slope = 0;
      for_each(half, [&](float z) { entmax.add<kSquare>(z - x, sum, slope); });
      sum = quad_sum(sum);
      slope = entmax.beta * quad_sum(slope);
      (sum >= 1 ? low[half] : high[half]) = x;
      const float next = !convex     ? 0.5f * (low[half] + high[half])
                         : slope > 0 ? fmaxf(x, x + __fdividef(sum - 1, slope))
                                     : x;
      moved |= fabsf(next - x) > 6e-8f;
      x = next;
    }
    if (!__any_sync(kWarp, moved)) break;
  }
  if (!convex) {
    offset[0] = low[0];
    offset[1] = low[1];
  }
}
template <class ForEach>
__device__ __forceinline__ void solve(const Entmax& entmax, int steps, float (&offset)[2],
                                      const ForEach& for_each) {
  if (entmax.beta == 2) {
    solve_weights<true>(entmax, steps, offset, for_each);
  } else {
    solve_weights<false>(entmax, steps, offset, for_each);
  }
}

}  // namespace splash::gpu::sparse
