#pragma once
// Scores of the screen that may count, put aside by the group, and their way from there into the rows' lists.

#include <cuda_fp16.h>

#include "gpu/arch/shared_pointer.cuh"
#include "gpu/entmax/row_lists.cuh"

namespace splash::gpu::entmax {

constexpr uint32_t kNoScores = 0xFC00FC00;  // two of -inf in float16

__device__ __forceinline__ __half2 half2_of(uint32_t bits) {
  return *reinterpret_cast<const __half2*>(&bits);
}
__device__ __forceinline__ uint32_t bits_of(__half2 pair) {
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b) {
  return bits_of(__hmax2(half2_of(a), half2_of(b)));
}
__device__ __forceinline__ uint32_t smaller(uint32_t a, uint32_t b) {
  return bits_of(__hmin2(half2_of(a), half2_of(b)));
}

// What the exact score is at least: the screen's is off by a margin, and by its last rounding.
__device__ __forceinline__ float at_least(float score, float margin) {
  return score - 0x1.02p-11f * fabsf(score) - margin;
}
// What exceeds the bound in exact scores exceeds the threshold in the screen's. It is twice in float16, and
// so that rounding does not lift it, it starts from less than the bound.
__device__ __forceinline__ uint32_t threshold_of(float bound, float margin) {
  return bits_of(__float2half2_rn(bound - 0x1p-10f * fabsf(bound) - margin));
}
// The sign bits of the scores that exceed.
__device__ __forceinline__ uint32_t exceeding(uint32_t threshold, uint32_t scores) {
  return bits_of(__hsub2(half2_of(threshold), half2_of(scores))) & 0x80008000u;
}

constexpr int kGroupKeys = 32, kGroupWords = 8;  // a warp's keys and a lane's words of a group; 16 scores

// The largest of a group's 8 scores of one row: of the even ones, and of the odd ones.
__device__ __forceinline__ uint32_t largest_of(const uint32_t* words, int half) {
  return larger(larger(words[half], words[2 + half]), larger(words[4 + half], words[6 + half]));
}

// What a warp has put aside: groups of scores of which one at least exceeded its row's threshold.
template <int kSlots>
struct Aside {
  static constexpr int kRoom = kSlots;
  alignas(16) uint32_t words[2][kSlots][kGroupWords / 2];  // the first four, the last four
  int origin[kSlots];                                      // the first of the group's keys, plus the lane

  // The groups from `first` to below `end`, fewer than 32. By the whole warp.
  __device__ __forceinline__ void move_to_start(int first, int end) {
    const int to = static_cast<int>(threadIdx.x) % 32, from = first + to;
    if (from < end) {  // first is at least 32: no lane writes what another reads
#pragma unroll
      for (auto& half : words)
        *reinterpret_cast<uint4*>(half[to]) = *reinterpret_cast<const uint4*>(half[from]);
      origin[to] = origin[from];
    }
    __syncwarp();
  }

  __device__ __forceinline__ void put(int slot, const uint32_t* w, int first_and_lane) {
    const uint32_t at = arch::shared_address(this), to = at + 16 * slot;
    arch::store_shared<0>(to, w[0], w[1], w[2], w[3]);
    arch::store_shared<16 * kSlots>(to, w[4], w[5], w[6], w[7]);
    arch::store_shared<32 * kSlots>(at + 4 * slot, static_cast<uint32_t>(first_and_lane));
  }
};

// Raises the bounds, drops what they rule out, and where two rows have hardly any room left even so, closes
// the one that takes more. Where half of the rows are crowded, so will be the others: all are closed.
template <class Lists>
__device__ __noinline__ void tighten(Lists& lists, const Head& head) {
  raise_bounds(lists, lists.scores, head.entmax, 2);
  drop_screened(lists);
  const int row = static_cast<int>(threadIdx.x) % kWarpRows, other = row ^ 8;
  const bool is_row = threadIdx.x % 32 < kWarpRows;
  const int count = lists.count[row], of_other = lists.count[other];
  __syncwarp();  // all have read
  const bool larger = count > of_other || (count == of_other && row < other);
  if (is_row && larger && count + of_other > Lists::kRoom - 4) close_row(lists, head, row, kCrowded);
  const bool crowded = is_row && lists.query[row] >= 0 && lists.bound[row] == kCrowded;
  if (__popc(__ballot_sync(kWarp, crowded)) >= kWarpRows / 2 && is_row) close_row(lists, head, row, kBroad);
  __syncwarp();
}

// Lists the pairs of the groups from `first` to below `waiting`, a lane a group, in the same order every
// time.
template <class Lists, class Aside>
__device__ __forceinline__ void list_groups(Lists& lists, const Aside& aside, const Head& head, int first,
                                            int waiting) {
  const int lane = static_cast<int>(threadIdx.x) % 32, slot = min(first + lane, Aside::kRoom - 1);
  const bool mine = first + lane < waiting;
  const int origin = mine ? aside.origin[slot] : 0, quad = origin % 32 / 4;
  unsigned peers = __ballot_sync(kWarp, mine);  // with groups of the same rows; votes are faster than a match
#pragma unroll
  for (int bit = 1; bit < 8; bit *= 2) {
    const unsigned of_bit = __ballot_sync(kWarp, (quad & bit) != 0);
    peers &= (quad & bit) != 0 ? of_bit : ~of_bit;
  }
  const float margin[2] = {lists.margin[quad], lists.margin[quad + 8]};
  int count[2] = {lists.count[quad], lists.count[quad + 8]};
  // Bit 31 - i: the high score of word i; bit 15 - i: its low one.
  const auto find = [&] {
    const uint32_t threshold[2] = {threshold_of(lists.bound[quad], margin[0]),
                                   threshold_of(lists.bound[quad + 8], margin[1])};
    uint32_t above = 0;
#pragma unroll
    for (int i = 0; i < kGroupWords; i += 4) {
      const uint4 w = *reinterpret_cast<const uint4*>(aside.words[i / 4][slot]);
      above |= exceeding(threshold[0], w.x) >> i | exceeding(threshold[1], w.y) >> (i + 1) |
               exceeding(threshold[0], w.z) >> (i + 2) | exceeding(threshold[1], w.w) >> (i + 3);
    }
    return mine ? above : 0;
  };
  const auto leave_counts = [&] {
    __syncwarp();  // all have read
    if (mine && (peers & ((1u << lane) - 1)) == 0) {
      lists.count[quad] = count[0];
      lists.count[quad + 8] = count[1];
    }
    __syncwarp();
  };
  uint32_t above = find();
  while (__any_sync(kWarp, above != 0)) {
    const int lead = __clz(static_cast<int>(above)), word = lead % kGroupWords, half = word % 2;
    const bool high = lead < 16;
    const int key = (origin & ~31) + 8 * (word / 2) + 2 * (origin % 4) + (high ? 1 : 0);
    const bool wanted = above != 0 && key < lists.end[quad + 8 * half];  // the row sees it
    const unsigned firsts = __ballot_sync(kWarp, wanted && half == 0) & peers;
    const unsigned seconds = __ballot_sync(kWarp, wanted && half == 1) & peers;
    // The first row's pairs come before the second's.
    const int upto = min(count[0] + __popc(firsts), Lists::kRoom - count[1]);
    const int at =
        (half == 0 ? count[0] : count[1]) + __popc((half == 0 ? firsts : seconds) & ((1u << lane) - 1));
    const bool fits = at + (half == 0 ? count[1] : upto) < Lists::kRoom;
    if (wanted && fits) {
      const auto* const scores = reinterpret_cast<const __half*>(aside.words[word / 4][slot]);
      const float score = __half2float(scores[2 * (word % 4) + (high ? 1 : 0)]);
      const int to = Lists::place(half, at);
      lists.scores[quad][to] = __float2half_rd(at_least(score, half == 0 ? margin[0] : margin[1]));
      lists.keys[quad][to] = key;
    }
    if (above != 0 && (!wanted || fits)) above &= ~(0x80000000u >> lead);
    count[0] = upto;
    count[1] = min(count[1] + __popc(seconds), Lists::kRoom - upto);
    if (__any_sync(kWarp, wanted && !fits)) [[unlikely]] {
      leave_counts();
      tighten(lists, head);
      count[0] = lists.count[quad];
      count[1] = lists.count[quad + 8];
      above &= find();
    }
  }
  leave_counts();
}

// Lists what was put aside, a lane a group: quickly only whole 32 groups. Returns how many are left. Not
// inlined: it is called from several places, none of them often.
template <class Lists, class Aside>
__device__ __noinline__ int list_aside(Lists& lists, Aside& aside, const Head& head, int waiting,
                                       bool quickly) {
  __syncwarp();
  const int end = quickly ? waiting / 32 * 32 : waiting;
#pragma unroll 1
  for (int first = 0; first < end; first += 32) list_groups(lists, aside, head, first, end);
  if (0 < end && end < waiting) aside.move_to_start(end, waiting);
  return waiting - end;
}

}  // namespace splash::gpu::entmax
