#pragma once
// One warp computes one row whose list has overflowed. It first gives the row the room of all the warp's
// lists. Where even that overflows, it keeps nothing but registers, and every step of the solver recomputes
// the scores. Slow and never wrong.

#include "gpu/ladders/splash/row_list.cuh"
#include "gpu/ladders/splash/selection.cuh"

namespace splash::gpu::sparse {

constexpr int kLargestBlock = 256;

// Returns in lane l the score of key `first` + l. Keys past the last are read as the last key.
static __device__ __noinline__ float scores_of_32(const Problem& p, const Head& h, const float* q,
                                                  int first) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float mine = 0;
#pragma unroll 2
  for (int i = 0; i < 4; ++i) {  // one quad per key, eight keys at a time
    const int key = min(first + 8 * i + lane / 4, p.kv_len - 1);
    const float product = quad_dot(q, h.k + static_cast<int64_t>(key) * p.head_dim, p.head_dim, 0);
    const float of_quad = __shfl_sync(kWarp, product, lane % 8 * 4);
    mine = lane / 8 == i ? of_quad : mine;
  }
  return p.scale * mine;
}

// Calls use(key, score) for the kept keys of each key block. All lanes call it; score is -inf where the lane
// holds no kept key.
template <class Use>
__device__ __forceinline__ void for_each_kept(const Problem& p, const Head& h, const Sight& sight,
                                              const float* q, const Use& use) {
  constexpr int kWords = kLargestBlock / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int first = 0; first < sight.end; first += p.block) {
    float score[kWords];
    uint32_t order[kWords];
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const int place = 32 * w + lane;
      const bool visible = place < p.block && sight.sees(first + place);
      score[w] = -INFINITY;
      if (__any_sync(kWarp, visible)) score[w] = scores_of_32(p, h, q, first + 32 * w);
      order[w] = order_of(score[w], visible);
    }
    const uint32_t kept = keep_largest(order, p.k_keep);
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      if (32 * w < p.block) use(first + 32 * w + lane, kept >> w & 1 ? score[w] : -INFINITY);
    }
  }
}

// Finishes the row from a list of `room` pairs. Returns false where more pairs than that stay above every
// bound; writes no output then.
__device__ __forceinline__ bool listed_row(const Problem& p, const Head& h, int query, const Sight& sight,
                                           const float* q, float* scores, int* keys, int room) {
  const Entmax entmax(h.alpha);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int count = 0;
  float bound = -INFINITY;
  bool poisoned = false;
  __syncwarp();  // the list may hold a row that other lanes still read
  for_each_kept(p, h, sight, q, [&](int key, float score) {
    if (count > room) return;  // overflown
    if (count + 32 > room) {
      const float largest = list_max(scores, count);
      bound = certified_bound(largest, bisect(scores, count, largest, entmax, kBoundSteps), entmax);
      count = drop_below(bound, scores, keys, count);
      if (count + 32 > room) count = room + 1;
      if (count > room) return;
    }
    const bool keep = !(score <= bound);
    const uint32_t kept = __ballot_sync(kWarp, keep);
    poisoned |= __any_sync(kWarp, !(score < INFINITY)) != 0;
    if (keep) {
      const int place = count + __popc(kept & ((1u << lane) - 1));
      scores[place] = score;
      keys[place] = key;
    }
    count += __popc(kept);
    __syncwarp();
  });
  if (count > room) return false;
  finish_row(p, h, PlainLoads{h.v}, 0, query, scores, keys, count, poisoned);
  return true;
}

static __device__ __noinline__ void exact_row(const Problem& p, int head, int query, float* scores, int* keys,
                                              int room) {
  const Head h = head_of(p, head);
  const Entmax entmax(h.alpha);
  const Sight sight = sight_of(p, h, query);
  const float* const q = h.q + static_cast<int64_t>(query) * p.head_dim;
  if (listed_row(p, h, query, sight, q, scores, keys, room)) return;
  float largest = -INFINITY;
  bool poisoned = false;
  for_each_kept(p, h, sight, q, [&](int, float score) {
    poisoned |= !(score < INFINITY);
    largest = fmaxf(largest, score);
  });
  poisoned = __any_sync(kWarp, poisoned);
  largest = warp_max(largest);

  // Newton from the left rises to tau and never passes it, provided the sum is convex (1 < alpha <= 2);
  // otherwise bisection.
  float low = -1, high = 0, offset = -1, total = 0;
  for (int step = 0; step < 40 && !poisoned && largest > -INFINITY; ++step) {
    float sum = 0, slope = 0;
    for_each_kept(p, h, sight, q, [&](int, float score) {
      const float u = entmax.gain * (score - largest) - offset;
      sum += entmax.weight(u);
      slope += entmax.slope(u);
    });
    total = warp_sum(sum);
    slope = entmax.beta * warp_sum(slope);
    (total >= 1 ? low : high) = offset;
    float next = h.alpha <= 2 ? offset + (total - 1) / slope : 0.5f * (low + high);
    if (fabsf(next - offset) < 6e-8f) break;
    if (!(next > low && next < high)) next = 0.5f * (low + high);
    offset = next;
  }

  float out[4] = {};
  const PlainLoads values{h.v};
  if (total > 0) {
    for_each_kept(p, h, sight, q, [&](int key, float score) {
      add_values(values, 0, p.head_dim, entmax.weight(entmax.gain * (score - largest) - offset), key, out);
    });
  }
  const float factor = poisoned ? NAN : total > 0 ? 1 / total : 0.0f;
  store_row<1>(h.out + static_cast<int64_t>(query) * p.head_dim, p.head_dim, factor, out);
}

}  // namespace splash::gpu::sparse
