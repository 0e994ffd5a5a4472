#pragma once
// tau of rows whose keys have exact scores, in shared memory.

#include "gpu/entmax/hopper/solve/joined_lists.cuh"
#include "gpu/entmax/math/vectors.cuh"

namespace splash::gpu::entmax::hopper {

// A row's tau, relative to its largest score, in units of <q, k>: that keeps Newton's first step short and
// well rounded, and sum p = 1 however large scores are.
struct Solution {
  float largest, bound, inverse;  // bound: tau less largest; inverse: of the sum of the weights
  __device__ __forceinline__ bool has(float score) const { return score - largest > bound; }
  __device__ __forceinline__ float excess(float score, float gain) const {
    return gain * (score - largest - bound);
  }
};

// A row's bound, in units of <q, k>.
template <class Lists>
__device__ __forceinline__ float bound_of_row(const Lists& lists, int row) {
  return lists.unit[row] * lists.bound[row].value;
}

// As solve_rows. kHeld: entries of a row in each lane's registers; others are read again at each step.
template <int kHeld, class Lists>
__device__ __forceinline__ void solve_rows_with(const Lists& lists, const Entmax& entmax, const Share& share,
                                                const int (&start)[2], const int (&length)[2],
                                                Solution (&solution)[2], int (&entries)[2]) {
  const float lower[2] = {bound_of_row(lists, share.row(0)), bound_of_row(lists, share.row(1))};
  float held[2][kHeld], largest[2], bound[2], sum[2];
  const auto score_of = [&](int half, int i) {
    const int at = share.lanes * i + share.lane;
    return at < length[half] ? lists.scores[start[half] + at] : -INFINITY;
  };
  const int most = (max(length[0], length[1]) + share.lanes - 1) / share.lanes;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    largest[half] = -INFINITY;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      held[half][i] = score_of(half, i);
      largest[half] = fmaxf(largest[half], held[half][i]);
    }
#pragma unroll 4
    for (int i = kHeld; i < most; ++i) largest[half] = fmaxf(largest[half], score_of(half, i));
    largest[half] = share.max(largest[half]);
    if (length[half] == 0) largest[half] = 0;
#pragma unroll
    for (float& score : held[half]) score -= largest[half];
    bound[half] = bound_of_largest(0, entmax.gain);
    if constexpr (!Lists::kKeepsLargest) bound[half] = fmaxf(lower[half] - largest[half], bound[half]);
  }
  entmax.visit([&](auto kind) {
#pragma unroll 1
    for (int step = 0; step < 40; ++step) {
      float slope[2] = {};
      const auto add = [&](int half, float score) {
        const float u = entmax.gain * (score - bound[half]), u_slope = entmax.slope(kind, u);
        sum[half] = fmaf(fmaxf(u, 0.0f), u_slope, sum[half]);
        slope[half] += u_slope;
      };
      sum[0] = sum[1] = 0;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        add(0, held[0][i]);
        add(1, held[1][i]);
      }
#pragma unroll 4
      for (int i = kHeld; i < most; ++i) {
        add(0, score_of(0, i) - largest[0]);
        add(1, score_of(1, i) - largest[1]);
      }
      bool moved = false;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float before = bound[half];
        sum[half] = share.sum(sum[half]);
        bound[half] = newton(entmax.beta * entmax.gain, before, sum[half], share.sum(slope[half]));
        moved |= bound[half] > before + 1e-7f * fabsf(before);
      }
      if (!__any_sync(kWarp, moved)) break;
    }
  });
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    solution[half] = {largest[half], bound[half], 1 / sum[half]};
    entries[half] = 0;
#pragma unroll
    for (const float score : held[half]) entries[half] += score > bound[half] ? 1 : 0;
#pragma unroll 4
    for (int i = kHeld; i < most; ++i) entries[half] += solution[half].has(score_of(half, i)) ? 1 : 0;
    entries[half] = share.sum(entries[half]);
  }
}

// Solves the two rows of the calling lane's quad, whose lists have `length` entries from `start` on, from the
// rows' bounds. Under k_keep these may be above tau, so it begins from the largest score. entries: how many
// of each list have p > 0.
template <class Lists>
__device__ __forceinline__ void solve_rows(const Lists& lists, const Entmax& entmax, const Share& share,
                                           const int (&start)[2], const int (&length)[2],
                                           Solution (&solution)[2], int (&entries)[2]) {
  constexpr int kFew = 4, kMany = 12;  // of a lane
  if (__all_sync(kWarp, max(length[0], length[1]) <= kFew * share.lanes) != 0)
    solve_rows_with<kFew>(lists, entmax, share, start, length, solution, entries);
  else
    solve_rows_with<kMany>(lists, entmax, share, start, length, solution, entries);
}

}  // namespace splash::gpu::entmax::hopper
