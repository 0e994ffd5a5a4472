#pragma once
// The thresholds of rows whose scores a team of blocks shares (dense.cuh): each question goes to all blocks,
// for all rows at once.
//
// The answer is solve.cuh's: the least shift, of multiples of 2^-24, at which f = sum of u_+^beta is 1 or
// more. f is summed in integers, so the answer depends neither on the order of keys nor on how questions are
// chosen.

#include "gpu/decode/solve.cuh"

namespace splash::gpu::decode {

// A row's threshold, between two shifts in units of 2^-24: f(low) < 1 <= f(high).
struct Search {
  static constexpr int kOneShift = 1 << 24;  // z_max - tau is at most 1
  static constexpr int kNewtonSteps = 24;    // then halves

  bool is_open = false;
  int low = 0, high = kOneShift, at = kOneShift;  // at: the next question
  int steps = 0;
  RowSums of_high{};
  float inverse = 0;  // of f(high), once closed

  __device__ float shift() const { return static_cast<float>(at) * 0x1p-24f; }
  __device__ float found() const { return static_cast<float>(high) * 0x1p-24f; }

  // sums: at `at`.
  __device__ void answer(const RowSums& sums, float beta) {
    if (sums.weights >= kOne) {
      high = at;
      of_high = sums;
    } else {
      low = at;
    }
    is_open = high - low > 1;
    if (!is_open) {
      inverse = inverse_of(of_high.weights);
      return;
    }
    // Newton's step on f's beta-norm, which is convex in shift.
    const float excess =
        sums.weights < 2 * kOne ? static_cast<float>(sums.weights - kOne) * 0x1p-40f : sums.approximate - 1;
    const float back = -(1 + excess) * expm1f(-log1pf(excess) / beta) / sums.slope * 0x1p24f;
    int next = low + (high - low) / 2;
    if (++steps < kNewtonSteps && fabsf(back) < 0x1p24f)
      next = back >= 0 ? at - max(static_cast<int>(back), 1) : at + max(static_cast<int>(ceilf(-back)), 1);
    at = min(max(next, low + 1), high - 1);
  }
};

// The lane's share of a row's sums at a shift: of `count` scores four from `first` on, and so on every `step`
// further; 16 at a time, while the next ones are on their way.
template <class Kind>
__device__ __forceinline__ RowSums sums_at(const Entmax& entmax, Kind kind, const float* scores, int count,
                                           int first, int step, float largest, float shift) {
  RowSums sums{};
  float4 ahead[4];
  const auto load = [&](int from) {  // the last four once more where there are no more
#pragma unroll
    for (int j = 0; j < 4; ++j)
      ahead[j] = *reinterpret_cast<const float4*>(scores + min(from + j * step, count - 4));
  };
  if (first < count) load(first);
#pragma unroll 1
  for (int i = first; i < count; i += 4 * step) {
    float4 fours[4];
#pragma unroll
    for (int j = 0; j < 4; ++j)
      fours[j] = i + j * step < count ? ahead[j] : float4{-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    load(i + 4 * step);
    WeightSum weights;
#pragma unroll
    for (const float4& four : fours) {
      const float of_lane[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (const float score : of_lane) {
        const float u = __fmul_rn(entmax.gain, score - largest) + shift, slope = entmax.slope(kind, u),
                    weight = fmaxf(u, 0.0f) * slope;
        weights.add(weight);
        sums.approximate += weight;
        sums.slope += slope;
        sums.support += u > 0 ? 1 : 0;
      }
    }
    sums.weights += weights.total();
  }
  return sums;
}

__device__ __forceinline__ RowSums warp_sums(RowSums sums) {
  sums.weights = warp_weights(sums.weights);
  sums.approximate = arch::warp_sum(sums.approximate);
  sums.slope = arch::warp_sum(sums.slope);
  sums.support = __reduce_add_sync(kAllLanes, sums.support);
  return sums;
}

// Answers the open searches of a unit. scores: [rows, pitch], of which each block has `count` of each row, a
// multiple of kChunkKeys; asked: [2, team, kRows], the team's; of_warp: a block's. All threads of the team
// call it.
__device__ inline void search_thresholds(const Entmax (&entmax)[kRows], const float (&largest)[kRows],
                                         const float* scores, int64_t pitch, int count, int rows,
                                         const Team& team, RowSums* asked, RowSums (&of_warp)[kWarps],
                                         Search (&search)[kRows]) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int members = members_of(rows), row = warp / members, step = 4 * 32 * members;
  static_assert(kChunkKeys % (4 * 32 * kWarps) == 0);
#pragma unroll 1
  for (int question = 0;; ++question) {
    if (__syncthreads_or(thread < rows && search[thread].is_open ? 1 : 0) == 0) return;
    if (search[row].is_open) {
      RowSums mine{};
      entmax[row].visit([&](auto kind) {
        mine = sums_at(entmax[row], kind, scores + row * pitch, count, 4 * (32 * (warp % members) + lane),
                       step, largest[row], search[row].shift());
      });
      mine = warp_sums(mine);
      if (lane == 0) of_warp[warp] = mine;
    }
    __syncthreads();
    const bool is_open = thread < rows && search[thread].is_open;
    RowSums* const slots = asked + question % 2 * team.size * kRows;
    if (is_open) {
      RowSums sum{};
      for (int member = 0; member < members; ++member) sum.add(of_warp[thread * members + member]);
      slots[team.rank * kRows + thread] = sum;
    }
    team.sync();
    if (is_open) {
      RowSums sum{};
      for (int rank = 0; rank < team.size; ++rank) sum.add(slots[rank * kRows + thread]);
      search[thread].answer(sum, entmax[thread].beta);
    }
  }
}

}  // namespace splash::gpu::decode
