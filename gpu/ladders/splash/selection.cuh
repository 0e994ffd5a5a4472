#pragma once
// The k_keep largest scores of a key block, found by a warp (sm_80: redux).

#include "gpu/ladders/splash/rows.cuh"

namespace splash::gpu::sparse {

constexpr uint32_t kHidden = 0, kPoison = 0xFFFFFFFFu;

// Maps a score to an integer in the same order. A masked key gives kHidden. NaN and +inf give kPoison, the
// largest, so that they are always kept and noticed.
__device__ __forceinline__ uint32_t order_of(float score, bool visible) {
  if (!visible || score == -INFINITY) return kHidden;
  if (!(score < INFINITY)) return kPoison;
  const uint32_t bits = __float_as_uint(score + 0.0f);  // -0 becomes 0: they are equal
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Lane l holds the block's keys l + 32 w. Bit w of the result says whether that key is kept. Among equal
// scores the lower key is kept first.
template <int kWords>
__device__ __forceinline__ uint32_t keep_largest(uint32_t (&order)[kWords], int k_keep) {
  uint32_t kept = 0;
  int visible = 0;
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    kept |= (order[w] != kHidden ? 1u : 0u) << w;
    visible += __popc(__ballot_sync(kWarp, order[w] != kHidden));
  }
  if (visible <= k_keep) return kept;
  kept = 0;
  const uint32_t lower_lanes = (1u << threadIdx.x % 32) - 1;
  for (int left = k_keep; left > 0;) {
    uint32_t best = order[0];
#pragma unroll
    for (int w = 1; w < kWords; ++w) best = max(best, order[w]);
    best = __reduce_max_sync(kWarp, best);
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const bool mine = order[w] == best;
      const uint32_t equal = __ballot_sync(kWarp, mine);
      if (mine) {
        kept |= (__popc(equal & lower_lanes) < left ? 1u : 0u) << w;
        order[w] = kHidden;
      }
      left = max(0, left - __popc(equal));
    }
  }
  return kept;
}

}  // namespace splash::gpu::sparse
