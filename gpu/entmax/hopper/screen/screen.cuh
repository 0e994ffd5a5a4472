#pragma once
// What a warp does with scores: samples bound the rows' tau, then a comparison per score finds the few keys
// that may have p > 0. Scores are products of 64 queries and kKeys keys in float16, in a warpgroup's
// registers (wgmma_f16.cuh); a key is listed where its score exceeds the row's bound less the score's largest
// error.
//
// The cost per score decides: at head_dim 64 the tensor cores need 256 cycles for 64 x 128 scores. So a lane
// compares two scores per instruction and keeps a bit of each, without a branch. wgmma waits for all four
// warps of a warpgroup, and a stage of the ring for all warps of the block: where one warp has more to do,
// all stall.

#include <cuda_fp16.h>

#include "gpu/arch/shared_pointer.cuh"
#include "gpu/entmax/hopper/screen/spill.cuh"
#include "gpu/entmax/hopper/screen/tile_schedule.h"

namespace splash::gpu::entmax::hopper {

// A lower bound of the exact score: the screen's is off by a margin, and by its last rounding.
__device__ __forceinline__ float at_least(float score, float margin) {
  return score - 0x1.02p-11f * fabsf(score) - margin;
}

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

// The threshold of the screen's scores: a key whose exact score exceeds the bound exceeds it. Two copies in
// float16, rounded from less than the bound, so that rounding does not raise it above.
__device__ __forceinline__ uint32_t threshold_of(float bound, float margin) {
  return bits_of(__float2half2_rn(bound - 0x1p-10f * fabsf(bound) - margin));
}

// The largest of each of the two scores of kCount words, every kApart-th from `first` on.
template <int kCount, int kApart, int kWords>
__device__ __forceinline__ uint32_t largest_of(const uint32_t (&acc)[kWords], int first) {
  if constexpr (kCount == 1) {
    return acc[first];
  } else {
    return larger(largest_of<kCount / 2, kApart>(acc, first),
                  largest_of<kCount / 2, kApart>(acc, first + kCount / 2 * kApart));
  }
}

// A lane's largest scores of the sampling pass, in falling order: per row, so many even ones and so many odd
// ones. A lane has 16 scores of a row in a part of kPartKeys keys. It takes the largest of each kGroup even
// ones, and odd ones: the more in a group the cheaper, but the more large scores hide behind larger ones.
// Neighbours are in different groups: large scores are often neighbours.
template <int kCount>
struct Samples {
  static constexpr int kPartKeys = 64;
  static constexpr int kOfRow = 8 * kCount;  // in the four lanes of a quad
  uint32_t largest[2][kCount];

  __device__ __forceinline__ Samples() {
#pragma unroll
    for (auto& of_row : largest) {
#pragma unroll
      for (uint32_t& pair : of_row) pair = kNoScores;
    }
  }

  template <int kGroup, int kWords>
  __device__ __forceinline__ void take(const uint32_t (&acc)[kWords]) {
    constexpr int kParts = 4 * kWords / kPartKeys;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int group = 0; group < kPartKeys / 8; group += kGroup) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint32_t rest = largest_of<kGroup, 2 * kParts>(acc, 2 * (kParts * group + part) + half);
#pragma unroll
          for (uint32_t& kept : largest[half]) {
            const uint32_t lesser = smaller(kept, rest);
            kept = larger(kept, rest);
            rest = lesser;
          }
        }
      }
    }
  }
};

// kRanges: whether rows see ranges of keys (arguments/key_range.h), else all keys below an end.
template <int kKeys, bool kRanges, class Lists>
class Screen {
 public:
  static constexpr int kWords = kKeys / 4;                        // a lane's
  static constexpr int kSamples = Lists::kKeepsLargest ? 10 : 4;  // of a lane and row, even ones and odd ones

  __device__ __forceinline__ Screen(Lists& lists, const Head& head)
      : lists_(lists), head_(head), least_(address_of(kNextTiles - 1)) {
    clear_column();
  }

  // Raises the rows' bounds to tau of their samples, which bounds tau of all keys from below, by `steps` of
  // Newton's, none of which passes it. k_keep: where rows keep their largest scores, so many; then to less
  // than the k_keep-th largest sample, too: what does not exceed that is not kept.
  __device__ __forceinline__ void bound_from(const Samples<kSamples>& samples, int steps, int k_keep) {
    const Entmax& entmax = head_.entmax;
    float scores[2][8], gain[2], bound[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      gain[half] = entmax.gain * lists_.unit[row_of(half)];
      const float margin = lists_.margin[row_of(half)];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = __half22float2(half2_of(samples.largest[half][i]));
        scores[half][2 * i] = at_least(pair.x, margin);
        scores[half][2 * i + 1] = at_least(pair.y, margin);
      }
      bound[half] = fmaxf(bound_of_largest(quad_max(fmaxf(scores[half][0], scores[half][1])), gain[half]),
                          lists_.bound[row_of(half)].value);
    }
    entmax.visit([&](auto kind) {
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        float sum[2] = {}, slope[2] = {};
#pragma unroll
        for (int i = 0; i < 8; ++i) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {  // two independent chains hide each other's latency
            const float u = gain[half] * (scores[half][i] - bound[half]), u_slope = entmax.slope(kind, u);
            sum[half] = fmaf(fmaxf(u, 0.0f), u_slope, sum[half]);
            slope[half] += u_slope;
          }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half)
          bound[half] =
              newton(entmax.beta * gain[half], bound[half], quad_sum(sum[half]), quad_sum(slope[half]));
      }
    });
    if constexpr (Lists::kKeepsLargest) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto& held = samples.largest[half];
        // Mostly no row of the warp has so many samples above its bound.
        const bool has_more = count_from(held, __float2half2_rn(bound[half])) >= k_keep;
        if (__any_sync(kWarp, has_more && k_keep <= Samples<kSamples>::kOfRow))
          bound[half] = fmaxf(bound[half], at_least(kth_largest(held, k_keep), lists_.margin[row_of(half)]));
      }
    }
    __syncwarp();  // all have read
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      RowBound& row = lists_.bound[row_of(half)];
      if (threadIdx.x % 4 == 0 && !row.is_deferred()) row.value = fmaxf(row.value, bound[half]);
    }
    __syncwarp();
  }

  // The range in z of the quad's row's 16 largest samples of two tiles; +inf where the row sees none.
  __device__ __forceinline__ float spread(const Samples<kSamples>& samples, int half) const {
    float largest = -INFINITY, least = INFINITY;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 pair = __half22float2(half2_of(samples.largest[half][i]));
      largest = fmaxf(largest, fmaxf(pair.x, pair.y));
      least =
          fminf(least, fminf(pair.x > -INFINITY ? pair.x : INFINITY, pair.y > -INFINITY ? pair.y : INFINITY));
    }
    largest = quad_max(largest);
    least = -quad_max(-least);
    return largest >= least ? head_.entmax.gain * lists_.unit[row_of(half)] * (largest - least) : INFINITY;
  }

  // How many of the lane's samples exceed their row's threshold.
  __device__ __forceinline__ int above_threshold(const Samples<kSamples>& samples) const {
    int above = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (const uint32_t pair : samples.largest[half])
        above += __popc(__hgt2_mask(half2_of(pair), half2_of(threshold_[half])) & 0x00010001u);
    }
    return above;
  }

  // From the bounds as they are. Called before compare, and after bounds rose.
  __device__ __forceinline__ void set_thresholds() {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      threshold_[half] = threshold_of(lists_.bound[row_of(half)].value, lists_.margin[row_of(half)]);
  }

  // Lists the keys of a tile whose scores exceed their row's threshold. masked: some rows do not see all of
  // the tile.
  __device__ __forceinline__ void compare(const uint32_t (&acc)[kWords], int first_key, bool masked,
                                          int lane) {
#pragma unroll
    for (int from = 0; from < kWords; from += kTileKeys / 4) {
      uint32_t above = 0;
#pragma unroll
      for (int word = 0; word < kTileKeys / 4; ++word) {
        const uint32_t bits = __hgt2_mask(half2_of(acc[from + word]), half2_of(threshold_[word % 2]));
        above |= bits & 0x00010001u << (word / 2 + 8 * (word % 2));
      }
      const int first = first_key + 4 * from;
      if (masked) {
        const int before = first + 2 * (lane % 4);
        above &= lowest_of_rows(lists_.end[lane / 4] - before, lists_.end[lane / 4 + 8] - before);
        if constexpr (kRanges)
          above &= ~lowest_of_rows(lists_.begin[lane / 4] - before, lists_.begin[lane / 4 + 8] - before);
      }
      if (above != 0) {
        arch::store_shared(next_, above, static_cast<uint32_t>(first));
        next_ -= kPairBytes;
      }
    }
  }

  // Whether the next iteration's tiles might not fit some lane's column.
  __device__ __forceinline__ bool nearly_full() const {
    return __any_sync(kWarp, next_ < least_);
  }

  // Makes room in the columns.
  __device__ __forceinline__ void spill(const SpillSlots& slots) {
    save_columns();
    spill_columns(slots, head_, lists_);
    clear_column();
    set_thresholds();
  }

  // Writes how full the columns are, for code that works on the lists.
  __device__ __forceinline__ void save_columns() {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    lists_.tiles[lane] = static_cast<int>(next_ - address_of(0)) / kPairBytes + 1;
    __syncwarp();
  }

  // Defers all rows to the dense path.
  __device__ __forceinline__ void defer_all() {
    __syncwarp();  // all have read
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (lane < kWarpRows) defer_row(lists_, head_, lane);
    __syncwarp();  // the bounds, for set_thresholds
    clear_column();
    set_thresholds();
  }

  __device__ __forceinline__ bool all_deferred() const {
    return __all_sync(
        kWarp, RowBound{fminf(lists_.bound[row_of(0)].value, lists_.bound[row_of(1)].value)}.is_deferred());
  }

 private:
  static constexpr int kPairBytes = 256;  // of all 32 lanes
  static constexpr int kNextTiles =
      kTilesPerIteration * kKeys / kTileKeys;  // before nearly_full is asked again

  // How many scores of those that the four lanes of a quad hold are at least a number, of which `least` has
  // two copies.
  template <int kPairs>
  static __device__ __forceinline__ int count_from(const uint32_t (&held)[kPairs], __half2 least) {
    int bits = 0;
#pragma unroll
    for (const uint32_t pair : held) bits += __popc(__hge2_mask(half2_of(pair), least));
    return quad_sum(bits) / 16;
  }

  // The k-th largest of these, by bisection of float16's ordered bits: of numbers below 0 all bits turned, of
  // others the highest.
  template <int kPairs>
  static __device__ __forceinline__ float kth_largest(const uint32_t (&held)[kPairs], int k) {
    const auto number_of = [](uint32_t ordered) {
      const uint32_t bits = ordered ^ (ordered < 0x8000 ? 0xFFFF : 0x8000);
      return half2_of(bits | bits << 16);
    };
    uint32_t least = 0x03FF, above = 0xFC01;  // -inf, and more than +inf: of `least` or more there are k
#pragma unroll 1
    for (int step = 0; step < 16; ++step) {
      const uint32_t middle = (least + above) / 2;
      (count_from(held, number_of(middle)) >= k ? least : above) = middle;
    }
    return __low2float(number_of(least));
  }

  // The bits of the keys 0, 8, 16, ... below `end`.
  static __device__ __forceinline__ uint32_t lowest(int end) {
    return (1u << min(max((end + 7) / 8, 0), 8)) - 1;
  }
  // The hit mask of the keys below each row's end.
  static __device__ __forceinline__ uint32_t lowest_of_rows(int first_end, int second_end) {
    return lowest(first_end) | lowest(second_end) << 8 | lowest(first_end - 1) << 16 |
           lowest(second_end - 1) << 24;
  }
  __device__ __forceinline__ uint32_t address_of(int pair) const {
    return arch::shared_address(lists_.columns[pair][threadIdx.x % 32]);
  }
  __device__ __forceinline__ void clear_column() {
    next_ = address_of(Lists::kPairs - 1);
  }

  Lists& lists_;
  const Head& head_;
  uint32_t threshold_[2] = {};
  uint32_t next_;   // the next tile's address in shared memory
  uint32_t least_;  // the least at which an iteration's tiles fit; computed once, for registers are few
};

}  // namespace splash::gpu::entmax::hopper
