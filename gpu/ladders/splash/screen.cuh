#pragma once
// The parts of the screen (rung 7): which tiles a block visits, and how a warp finds and lists the few scores
// of a tile that exceed their row's bound. A thread holds two rows of wgmma's tile of 64 queries by 128 keys:
// acc[4 j + 2 half + e] is key 8 j + 2 (lane % 4) + e of the row lane / 4 + 8 half of its warp.

#include "gpu/ladders/splash/screen_list.cuh"
#include "gpu/ladders/splash/screen_round.cuh"

namespace splash::gpu::sparse {

// The key tiles that some query of a block sees, rising; 32 at a time, a lane each.
struct TileWalk {
  const float2* norms;             // [tiles] of the key head
  const int2* positions;           // [tiles] of the head, or null
  int tiles, first_end, last_end;  // the first query sees keys below first_end, the last below last_end
  int smallest, largest;           // of the queries' positions
  int base = -32;
  uint32_t left = 0, whole = 0;  // bits: tiles still to come; tiles that all queries see in full
  float2 mine{};

  // The next tile, or -1; by all lanes.
  __device__ __forceinline__ int next(bool& in_full, float2& norm) {
    while (left == 0) {
      base += 32;
      if (base >= tiles) return -1;
      const int tile = base + static_cast<int>(threadIdx.x) % 32;
      const bool there = tile < tiles && tile * kScreenTile < last_end;
      const int2 range = there && positions != nullptr ? positions[tile] : int2{smallest, smallest};
      mine = there ? norms[tile] : float2{};
      left = __ballot_sync(kWarp, there && range.x <= largest);
      whole = __ballot_sync(kWarp, (tile + 1) * kScreenTile <= first_end && range.y <= smallest);
    }
    const int bit = __ffs(static_cast<int>(left)) - 1;
    left &= left - 1;
    in_full = whole >> bit & 1;
    norm.x = __shfl_sync(kWarp, mine.x, bit);
    norm.y = __shfl_sync(kWarp, mine.y, bit);
    return base + bit;
  }
};

// What a quad knows of one of its rows. Scores and bounds lack the scale: they are products of rounded
// vectors.
struct ScreenRow {
  float error, norm;   // |q - q'| and |q'| with room for the rounding of the sums
  float margin;        // the largest error of a score so far
  float bound;         // under tau; +inf: the row takes no candidates, exact_row computes it
  int count, trigger;  // listed, and the number beyond which the bound is sought anew
};

__device__ __forceinline__ void give_up(ScreenRow& row) {
  row.count = 0;
  row.bound = INFINITY;
}

// norm: the largest |k - k'| and |k| of the tile. Infinite or NaN: bfloat16 can bound nothing here.
__device__ __forceinline__ void widen_margin(const float2& norm, ScreenRow& row) {
  const float margin = row.error * norm.y + row.norm * norm.x;
  if (margin < 1e30f) {
    row.margin = fmaxf(row.margin, margin);
  } else {
    give_up(row);
  }
}

// tau is at least this where the sum of the weights of z - largest - offset is at least 1.
__device__ __forceinline__ void raise_bound(float largest, float offset, float gain, ScreenRow& row) {
  const float bound = largest + __fdividef(offset - 1e-5f, gain) - 1e-6f * fabsf(largest) - row.margin;
  if (largest > -INFINITY) row.bound = fmaxf(row.bound, bound);
}

template <int kHalf>
__device__ __forceinline__ void hide_unseen(float (&acc)[64], const Sight& sight, int first_key) {
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    float& score = acc[4 * (i / 2) + 2 * kHalf + i % 2];
    score = sight.sees(first_key + 8 * (i / 2) + 2 * quad_lane() + i % 2) ? score : -INFINITY;
  }
}

// The lane's largest scores of the tile's first and second 64 keys.
template <int kHalf>
__device__ __forceinline__ float2 largest_of(const float (&acc)[64]) {
  float2 x{acc[2 * kHalf], acc[32 + 2 * kHalf]};
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    x.x = fmaxf(x.x, fmaxf(acc[4 * j + 2 * kHalf], acc[4 * j + 2 * kHalf + 1]));
    x.y = fmaxf(x.y, fmaxf(acc[32 + 4 * j + 2 * kHalf], acc[32 + 4 * j + 2 * kHalf + 1]));
  }
  return x;
}

// The four largest of what a lane saw, a score of each 64 keys at most: what a row's four lanes hold is a set
// of its keys.
struct TopScores {
  float largest[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};

  __device__ __forceinline__ void insert(float score) {
#pragma unroll
    for (float& x : largest) {
      const float lesser = fminf(x, score);
      x = fmaxf(x, score);
      score = lesser;
    }
  }
};

// How many of the quad's lanes may bring a score of the same 64 keys, so that never more than k_keep of a
// block count.
__device__ __forceinline__ int lanes_that_count(const Problem& p) {
  return min(4, p.k_keep * 64 / max(p.block, 64));
}

// Each 64 keys' largest score of the lane, or of the lanes that count as one.
__device__ __forceinline__ void keep_top(float2 x, int lanes, TopScores& top) {
  if (lanes < 4) x = {fmaxf(x.x, __shfl_xor_sync(kWarp, x.x, 1)), fmaxf(x.y, __shfl_xor_sync(kWarp, x.y, 1))};
  if (lanes < 2) x = {fmaxf(x.x, __shfl_xor_sync(kWarp, x.x, 2)), fmaxf(x.y, __shfl_xor_sync(kWarp, x.y, 2))};
  top.insert(x.x);
  top.insert(x.y);
}

// tau of those scores; of the largest alone where no more may count.
__device__ __forceinline__ void bound_from(const TopScores& top, int lanes, const Entmax& entmax, float gain,
                                           ScreenRow& row) {
  const float largest = quad_max(top.largest[0]);
  const bool mine = lanes == 4 || quad_lane() % (lanes == 1 ? 4 : 2) == 0;
  float offset = -1;
#pragma unroll 1
  for (int step = 0; step < 8 && lanes > 0 && entmax.gain <= 1; ++step) {
    float sum = 0, slope = 0;
#pragma unroll
    for (const float score : top.largest) {
      const float u = gain * (score - largest) - offset;
      sum += entmax.weight(u);
      slope += entmax.slope(u);
    }
    sum = quad_sum(mine ? sum : 0);
    slope = entmax.beta * quad_sum(mine ? slope : 0);
    offset = slope > 0 ? fmaxf(offset, offset + __fdividef(sum - 1, slope)) : offset;
  }
  raise_bound(largest, offset, gain, row);
}

// Bits: which of the lane's 16 scores of the row and 64 keys exceed the threshold, by the sign of the
// difference: two instructions each.
template <int kHalf, int kPart>
__device__ __forceinline__ uint32_t above(const float (&acc)[64], float threshold) {
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float score = acc[32 * kPart + 4 * (i / 2) + 2 * kHalf + i % 2];
    bits = __funnelshift_l(__float_as_uint(threshold - score), bits, 1);
  }
  return __brev(bits) >> 16;
}

// acc[32 part + 4 (i / 2) + 2 half + i % 2] for a run-time i, by selection: an index would move acc out of
// the registers.
template <int kHalf, int kPart>
__device__ __forceinline__ float pick(const float (&acc)[64], int i) {
  float x[8];
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const int at = 32 * kPart + 4 * n + 2 * kHalf;
    x[n] = i & 1 ? acc[at + 1] : acc[at];
  }
#pragma unroll
  for (int n = 0; n < 4; ++n) x[n] = i & 2 ? x[2 * n + 1] : x[2 * n];
#pragma unroll
  for (int n = 0; n < 2; ++n) x[n] = i & 4 ? x[2 * n + 1] : x[2 * n];
  return i & 8 ? x[1] : x[0];
}

// Raises the bound by what is listed and drops what falls under it.
__device__ __forceinline__ void tighten(const Entmax& entmax, float gain, int steps, const CandidateRow& list,
                                        ScreenRow& row) {
  const auto counts = [&](int i) { return (list.keys[i] & kUncounted) == 0; };
  float largest = -INFINITY;
  for_each_four(row.count, [&](int i) {
    if (i < row.count && counts(i)) largest = fmaxf(largest, list.scores[i]);
  });
  largest = quad_max(largest);
  const float start = fminf(0.0f, fmaxf(-1.0f, gain * (row.bound + row.margin - largest)));
  const float offset = solve_quad(list, row.count, entmax, gain, largest, start, steps, counts);
  raise_bound(largest, offset, gain, row);
  compact(list, row.count, [&](int i) { return list.scores[i] + row.margin > row.bound; });
  row.trigger = max(kCandidates - 16, min(row.count + 8, kCandidates - 4));
}

// Appends the row's scores of 64 keys above its bound. Of each selection block `quota` keys a lane count for
// bounds. `largest` is the lane's largest of them. By all lanes of a warp.
template <int kHalf, int kPart>
__device__ __forceinline__ void list_above(int block, int quota, const float (&acc)[64], float largest,
                                           int first_key, const CandidateRow& list, ScreenRow& row) {
  uint32_t left = above<kHalf, kPart>(acc, row.bound - row.margin);
  if (row.count + quad_sum(__popc(left)) > kCandidates) {
    give_up(row);
    left = 0;
  }
  const uint32_t mine = left;
  const int width = min(block, 64) / 4;  // bits of a selection block
  const bool single = !__any_sync(kWarp, (left & (left - 1)) != 0);
  for (uint32_t lanes; (lanes = __ballot_sync(kWarp, left != 0)) != 0;) {
    const int i = __ffs(static_cast<int>(left)) - 1;
    const float score = single ? largest : pick<kHalf, kPart>(acc, i);
    const uint32_t quad = lanes >> (threadIdx.x % 32 & ~3u) & 15;
    if (left != 0) {
      const int key = first_key + 64 * kPart + 8 * (i / 2) + 2 * quad_lane() + i % 2;
      const int place = row.count + __popc(quad & ((1u << quad_lane()) - 1));
      const uint32_t earlier = mine & ((1u << i) - 1) & (0xFFFFFFFFu << (i & -width));
      list.scores[place] = score;
      list.keys[place] = __popc(earlier) < quota ? key : key | kUncounted;
      left &= left - 1;
    }
    row.count += __popc(quad);
  }
  __syncwarp();
}

// The same of 128 keys, where a score exceeds the bound.
template <int kHalf>
__device__ __forceinline__ void list_tile(int block, int quota, const float (&acc)[64], const float2& largest,
                                          int first_key, const CandidateRow& list, ScreenRow& row) {
  // Of a block of more than 64 keys only the first 64 count.
  if (__any_sync(kWarp, largest.x > row.bound - row.margin))
    list_above<kHalf, 0>(block, first_key % block == 0 || block <= 64 ? quota : 0, acc, largest.x, first_key,
                         list, row);
  if (__any_sync(kWarp, largest.y > row.bound - row.margin))
    list_above<kHalf, 1>(block, block <= 64 ? quota : 0, acc, largest.y, first_key, list, row);
}

}  // namespace splash::gpu::sparse
