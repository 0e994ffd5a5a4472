#pragma once
// The end of the screen: the listed candidates scored exactly, chosen from, solved for tau, their values
// gathered. A warp does so for its own 16 rows.

#include "gpu/ladders/splash/screen_list.cuh"
#include "gpu/ladders/splash/screen_round.cuh"

namespace splash::gpu::sparse {

constexpr int kScreenStages = 2, kScreenWarps = 8, kWarpRows = kScreenTile / kScreenWarps;

template <int kPanels>
struct ScreenShared {
  alignas(1024) unsigned char q[kPanels * kPanelBytes];
  unsigned char k[kScreenStages][kPanels * kPanelBytes];
  float scores[kScreenTile][kCandidatePitch];  // later: weights
  int keys[kScreenTile][kCandidatePitch];
  int counts[kScreenTile];     // -1: for exact_row
  float factors[kScreenTile];  // 1 / sum of weights
  uint64_t q_full, full[kScreenStages], empty[kScreenStages];
  int smallest, largest;  // of the queries' positions
};

// The listed scores exactly, less one product near them, so that large scores keep their differences.
__device__ __forceinline__ void score_again(const Problem& p, const Head& h, int query,
                                            const CandidateRow& list, int count) {
  const float reference = count > 0 ? copysignf(1.0f, p.scale) * list.scores[0] : 0.0f;
  const float* const q = h.q + static_cast<int64_t>(min(query, p.q_len - 1)) * p.head_dim;
  const int longest = __reduce_max_sync(kWarp, count);
  __syncwarp();  // all have read the reference
#pragma unroll 2
  for (int i = 0; i < longest; ++i) {
    const int key = i < count ? list.keys[i] & ~kUncounted : 0;
    const float product = quad_dot(q, h.k + static_cast<int64_t>(key) * p.head_dim, p.head_dim, -reference);
    if (i < count && quad_lane() == 0) list.scores[i] = p.scale * product;
  }
  __syncwarp();
}

// Of more than k_keep candidates of a block the largest, at equal scores the lower keys. All of the block's
// keys that could be selected and have p > 0 are candidates.
__device__ __forceinline__ void select_candidates(const Problem& p, const CandidateRow& list, int& count) {
  bool crowd = false;
  for_each_four(count, [&](int i) { crowd |= i < count && (list.keys[i] & kUncounted) != 0; });
  if (!__any_sync(kWarp, crowd)) return;
  static_assert(kCandidates <= 4 * 32);
  uint32_t kept = 0;  // bit i / 4: this lane's candidate i
  for_each_four(count, [&](int i) {
    if (i >= count) return;
    const int key = list.keys[i] & ~kUncounted;
    int before = 0;
    for (int j = 0; j < count; ++j) {
      const int other = list.keys[j] & ~kUncounted;
      const bool first = list.scores[j] > list.scores[i] || (list.scores[j] == list.scores[i] && other < key);
      before += other / p.block == key / p.block && first ? 1 : 0;
    }
    kept |= (before < p.k_keep ? 1U : 0U) << (i / 4);
  });
  __syncwarp();  // all have compared before keys move
  compact(list, count, [&](int i) {
    list.keys[i] &= ~kUncounted;
    return (kept >> (i / 4) & 1) != 0;
  });
}

// Scores to weights; returns 1 / their sum.
__device__ __forceinline__ float weigh_candidates(const Entmax& entmax, const CandidateRow& list,
                                                  int& count) {
  float largest = -INFINITY, total = 0;
  for_each_four(count, [&](int i) { largest = i < count ? fmaxf(largest, list.scores[i]) : largest; });
  largest = quad_max(largest);
  const float offset =
      solve_quad(list, count, entmax, entmax.gain, largest, -1, 24, [](int) { return true; });
  for_each_four(count, [&](int i) {
    if (i >= count) return;
    list.scores[i] = entmax.weight(entmax.gain * (list.scores[i] - largest) - offset);
    total += list.scores[i];
  });
  __syncwarp();
  compact(list, count, [&](int i) { return list.scores[i] > 0; });
  total = quad_sum(total);
  return total > 0 ? 1 / total : 0.0f;
}

// The output of the warp's 16 rows, two at a time where 16 lanes of four dimensions hold a row.
template <int kPanels, class Shared>
__device__ void gather(const Problem& p, const Head& h, int first_query, int first_row,
                       const Shared& shared) {
  constexpr int kLanes = 16 * kPanels;
  const int d = static_cast<int>(threadIdx.x) % kLanes * 4;
  for (int r = static_cast<int>(threadIdx.x) % 32 / kLanes; r < kWarpRows; r += 32 / kLanes) {
    const int row = first_row + r, query = first_query + row, count = shared.counts[row];
    if (query >= p.q_len || count < 0 || d >= p.head_dim) continue;
    float4 sum{};
#pragma unroll 4
    for (int i = 0; i < count; ++i) {
      const float weight = shared.scores[row][i];
      const float4 value = __ldg(reinterpret_cast<const float4*>(
          h.v + static_cast<int64_t>(shared.keys[row][i] & ~kUncounted) * p.head_dim + d));
      sum.x = fmaf(weight, value.x, sum.x);
      sum.y = fmaf(weight, value.y, sum.y);
      sum.z = fmaf(weight, value.z, sum.z);
      sum.w = fmaf(weight, value.w, sum.w);
    }
    const float factor = shared.factors[row];
    *reinterpret_cast<float4*>(h.out + static_cast<int64_t>(query) * p.head_dim + d) =
        make_float4(factor * sum.x, factor * sum.y, factor * sum.z, factor * sum.w);
  }
}

}  // namespace splash::gpu::sparse
