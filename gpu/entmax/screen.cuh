#pragma once
// One dense pass over the keys of a row tile, which finds the few that may have p > 0: products of 64 queries
// and kKeys keys in float16, in a warpgroup's registers (wgmma_f16.cuh), held against the rows' bounds less
// the products' error.
//
// What a score costs decides: at head_dim 64 the tensor cores need 256 cycles for 64 x 128 scores. So a lane
// compares two at a time and keeps a bit of each, without a branch: a product waits for all four warps of a
// warpgroup, a tile's place in the ring for all warps, and where one has more to do, all wait for it.

#include <cuda_fp16.h>

#include "gpu/arch/shared_pointer.cuh"
#include "gpu/entmax/room.cuh"

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

// What exceeds the bound in exact scores exceeds the threshold in the screen's. It is twice in float16, and
// so that rounding does not lift it, it starts from less than the bound.
__device__ __forceinline__ uint32_t threshold_of(float bound, float margin) {
  return bits_of(__float2half2_rn(bound - 0x1p-10f * fabsf(bound) - margin));
}

// The largest of every second word from kFirst on: of the even scores of a row, and of the odd ones.
template <int kFirst, int kCount, int kWords>
__device__ __forceinline__ uint32_t largest_of(const uint32_t (&acc)[kWords]) {
  if constexpr (kCount == 1) {
    return acc[kFirst];
  } else {
    return larger(largest_of<kFirst, kCount / 2>(acc), largest_of<kFirst + kCount, kCount / 2>(acc));
  }
}

// A lane's largest scores of some tiles, four of the even ones and four of the odd ones of each row, one a
// tile at most.
struct Samples {
  uint32_t largest[2][4] = {{kNoScores, kNoScores, kNoScores, kNoScores},
                            {kNoScores, kNoScores, kNoScores, kNoScores}};

  template <int kWords>
  __device__ __forceinline__ void take(const uint32_t (&acc)[kWords]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t rest = half == 0 ? largest_of<0, kWords / 2>(acc) : largest_of<1, kWords / 2>(acc);
#pragma unroll
      for (uint32_t& kept : largest[half]) {
        const uint32_t lesser = smaller(kept, rest);
        kept = larger(kept, rest);
        rest = lesser;
      }
    }
  }
};

// kTurnsAtOnce: tiles between one question for room and the next.
template <class T, int kKeys, int kTurnsAtOnce, class Lists>
class Screen {
 public:
  static constexpr int kWords = kKeys / 4;  // a lane's

  __device__ __forceinline__ Screen(Lists& lists, const Head& head) : lists_(lists), head_(head) {
    forget_keys();
  }

  // tau of the samples: they are a set of keys like any other.
  __device__ __forceinline__ void bound_from(const Samples& samples) {
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
      bound[half] = bound_of_largest(quad_max(fmaxf(scores[half][0], scores[half][1])), gain[half]);
    }
    entmax.visit([&](auto kind) {
#pragma unroll 1
      for (int step = 0; step < 6; ++step) {
        float sum[2] = {}, slope[2] = {};
#pragma unroll
        for (int i = 0; i < 8; ++i) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {  // two chains, so that neither waits
            const float u = gain[half] * (scores[half][i] - bound[half]), of_u = entmax.slope(kind, u);
            sum[half] = fmaf(fmaxf(u, 0.0f), of_u, sum[half]);
            slope[half] += of_u;
          }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half)
          bound[half] =
              newton(entmax.beta * gain[half], bound[half], quad_sum(sum[half]), quad_sum(slope[half]));
      }
    });
    __syncwarp();  // all have read
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float& of_row = lists_.bound[row_of(half)];
      if (threadIdx.x % 4 == 0 && !is_left(of_row)) of_row = fmaxf(of_row, bound[half]);
    }
    __syncwarp();
  }

  // How far the 16 largest samples of the quad's row lie apart in z, two tiles' so far; +inf where it sees
  // none.
  __device__ __forceinline__ float spread(const Samples& samples, int half) const {
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

  // How many of the 32 samples of the quad's row lie above its bound.
  __device__ __forceinline__ int above_bound(const Samples& samples, int half) const {
    const int row = row_of(half);
    int above = 0;
#pragma unroll
    for (const uint32_t pair : samples.largest[half]) {
      const float2 scores = __half22float2(half2_of(pair));
      above += scores.x > lists_.bound[row] ? 1 : 0;
      above += scores.y > lists_.bound[row] ? 1 : 0;
    }
    return quad_sum(above);
  }

  // Before keys are looked at: with the bounds as they are.
  __device__ __forceinline__ void aim() {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      threshold_[half] = threshold_of(lists_.bound[row_of(half)], lists_.margin[row_of(half)]);
  }

  // Lists the keys of a tile whose scores exceed their row's threshold. partly: some rows do not see all.
  __device__ __forceinline__ void look(const uint32_t (&acc)[kWords], int first_key, bool partly, int lane) {
#pragma unroll
    for (int from = 0; from < kWords; from += kTileKeys / 4) {
      uint32_t above = 0;
#pragma unroll
      for (int word = 0; word < kTileKeys / 4; ++word) {
        const uint32_t bits = __hgt2_mask(half2_of(acc[from + word]), half2_of(threshold_[word % 2]));
        above |= bits & 0x00010001u << (word / 2 + 8 * (word % 2));
      }
      const int first = first_key + 4 * from;
      if (partly) {
        const int before = first + 2 * (lane % 4);
        const int left[2] = {lists_.end[lane / 4] - before, lists_.end[lane / 4 + 8] - before};
        above &=
            lowest(left[0]) | lowest(left[1]) << 8 | lowest(left[0] - 1) << 16 | lowest(left[1] - 1) << 24;
      }
      if (above != 0) {
        arch::store_shared(next_, above, static_cast<uint32_t>(first));
        next_ -= kPairBytes;
      }
    }
  }

  // Whether a lane's column has hardly room for the next tiles.
  __device__ __forceinline__ bool has_little_room() const {
    return __any_sync(kWarp, next_ < least_);
  }

  __device__ __forceinline__ void make_room(const Problem& p, int head_index) {
    save_columns();
    make_room_in<T, 2 * kNextTiles + 2>(p, head_index, head_, lists_);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    next_ = place_of(Lists::kSlots / 2 - 1);
    least_ = place_of((lists_.keys[lane] + 1) / 2 + kNextTiles - 1);
    aim();
  }

  // For those who work on the lists.
  __device__ __forceinline__ void save_columns() {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    lists_.tiles[lane] = static_cast<int>(next_ - place_of(0)) / kPairBytes + 1;
    __syncwarp();
  }

  // All rows are left to the dense path.
  __device__ __forceinline__ void close_all() {
    __syncwarp();  // all have read
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (lane < kWarpRows) close_row(lists_, head_, lane, kBroad);
    __syncwarp();
    forget_keys();
    aim();
  }

  // Whether no row takes keys any more.
  __device__ __forceinline__ bool closed() const {
    return __all_sync(kWarp, is_left(fminf(lists_.bound[row_of(0)], lists_.bound[row_of(1)])));
  }

 private:
  static constexpr int kPairBytes = 256;                               // of all lanes
  static constexpr int kNextTiles = kTurnsAtOnce * kKeys / kTileKeys;  // before room is asked for again

  // The bits of the keys 0, 8, 16, ... below `end`.
  static __device__ __forceinline__ uint32_t lowest(int end) {
    return (1u << min(max((end + 7) / 8, 0), 8)) - 1;
  }
  __device__ __forceinline__ uint32_t place_of(int pair) const {
    return arch::shared_address(lists_.columns[pair][threadIdx.x % 32]);
  }
  __device__ __forceinline__ void forget_keys() {
    lists_.keys[threadIdx.x % 32] = 0;
    next_ = place_of(Lists::kSlots / 2 - 1);
    least_ = place_of(kNextTiles - 1);
  }

  Lists& lists_;
  const Head& head_;
  uint32_t threshold_[2] = {};
  uint32_t next_, least_;  // where the lane's next tile goes in shared memory, and where it has to
};

}  // namespace splash::gpu::entmax
