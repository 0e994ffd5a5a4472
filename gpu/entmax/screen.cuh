#pragma once
// One dense pass over the keys of a row tile, which finds the few pairs that may have p > 0: the products of
// 64 queries and kKeys keys in a warpgroup's registers (acc[4 j + 2 half + e] is key 8 j + 2 (lane % 4) + e
// of row lane / 4 + 8 half of its warp), held against the rows' bounds.
//
// What a score costs decides: at head_dim 64 the tensor cores need 256 cycles for a tile of 64 x 128, and a
// warp may issue as many instructions for its 64 scores a lane. Positive floats are in the order of their
// bits, so 3-input integer maxima (half an instruction a score) tell whether one of a lane's 8 scores of a
// row exceeds a positive bound; NaN and +inf do. Only where a lane of the warp says yes are the signs of
// bound - score collected into masks. Nearly always a mask has one bit: the score is the maximum then.

#include "gpu/entmax/candidates.cuh"

namespace splash::gpu::entmax {

// The i-th of a group's 8 scores of one row.
__device__ __forceinline__ float nth(const float* s, int i) {
  return s[4 * (i / 2) + i % 2];
}

__device__ __forceinline__ int largest_bits(const float* s) {
  const auto bits = [&](int i) { return __float_as_int(nth(s, i)); };
  const int a = __vimax3_s32(bits(0), bits(1), bits(2)), b = __vimax3_s32(bits(3), bits(4), bits(5));
  return __vimax3_s32(max(a, b), bits(6), bits(7));
}

// A lane's largest scores of some tiles, four of each row, one a tile at most. Where no score is positive
// they are not the largest: any keys will do.
struct Samples {
  static constexpr int kNone = static_cast<int>(0xFF800000);  // the bits of -inf
  int largest[2][4] = {{kNone, kNone, kNone, kNone}, {kNone, kNone, kNone, kNone}};

  template <int kScores>
  __device__ __forceinline__ void take(const float (&acc)[kScores]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int bits = largest_bits(acc + 2 * half);
#pragma unroll
      for (int group = 1; group < kScores / 16; ++group)
        bits = max(bits, largest_bits(acc + 16 * group + 2 * half));
#pragma unroll
      for (int& top : largest[half]) {
        const int lesser = min(top, bits);
        top = max(top, bits);
        bits = lesser;
      }
    }
  }
};

template <int kKeys, class Lists>
class Screen {
 public:
  static constexpr int kScores = kKeys / 2;  // a lane's

  __device__ __forceinline__ Screen(Lists& lists, const Entmax& entmax) : lists_(lists), entmax_(entmax) {}

  // tau of the samples: they are a set of keys like any other.
  __device__ __forceinline__ void bound_from(const Samples& samples, Rows& rows) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int bits = samples.largest[half][0];
      if (quad_any(bits >= kPoison) && rows.status[half] == RowStatus::open)
        rows.close(half, RowStatus::poisoned);
      rows.bound[half] = fmaxf(rows.bound[half], bound_of_largest(quad_max(__int_as_float(bits)), entmax_));
#pragma unroll 1
      for (int step = 0; step < 6; ++step) {
        float sum = 0, slope = 0;
#pragma unroll
        for (const int score : samples.largest[half]) {
          const float u = entmax_.gain * (__int_as_float(score) - rows.bound[half]), of_u = entmax_.slope(u);
          sum = fmaf(fmaxf(u, 0.0f), of_u, sum);
          slope += of_u;
        }
        rows.bound[half] = newton(entmax_, rows.bound[half], quad_sum(sum), quad_sum(slope));
      }
    }
    bounds_moved(rows);
  }

  // tile_key: the first of the tile's keys; due: the bounds are to rise even if there is room.
  __device__ __forceinline__ void take(const float (&acc)[kScores], int tile_key, bool due, Rows& rows) {
    list(acc, tile_key, rows);
    if (due || __any_sync(kWarp, max(rows.count[0], rows.count[1]) > kNearlyFull)) [[unlikely]]
      tighten(acc, tile_key, rows);
  }

 private:
  static constexpr int kPoison = 0x7F800000;  // the bits of +inf; those of NaN are above
  static constexpr int kNearlyFull = Lists::kRoom - 2;

  __device__ __forceinline__ void bounds_moved(const Rows& rows) {
    positive_ = __all_sync(kWarp, rows.bound[0] > 0 && rows.bound[1] > 0);
  }

  // Raises the bounds and shortens the lists. Where pairs of this tile were lost for want of room, all of its
  // pairs are listed anew; a row that has no room for them even so is closed.
  __device__ __forceinline__ void tighten(const float (&acc)[kScores], int tile_key, Rows& rows) {
    for (;;) {
      bool lost[2];
      float before[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        lost[half] = quad_any(rows.count[half] > Lists::kRoom);
        rows.count[half] = min(rows.count[half], Lists::kRoom);
        before[half] = rows.bound[half];
      }
      raise_bounds(lists_, entmax_, 2, rows);
      const bool again = __any_sync(kWarp, lost[0] || lost[1]);
      drop_pairs(lists_, again ? tile_key : 0, again ? tile_key + kKeys : 0, rows);
      balance(lists_, rows);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (lost[half] && !(rows.bound[half] > before[half])) rows.close(half, RowStatus::crowded);
      }
      bounds_moved(rows);
      if (!again) return;
      list(acc, tile_key, rows);
    }
  }

  // Bit 7 - i: whether score i exceeds the bound.
  static __device__ __forceinline__ unsigned above(const float* s, float bound) {
    unsigned mask = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) mask = __funnelshift_l(__float_as_uint(bound - nth(s, i)), mask, 1);
    return mask;
  }

  static __device__ __forceinline__ float select(const float* s, int i) {  // of registers, i not a constant
    const float a = i & 1 ? nth(s, 1) : nth(s, 0), b = i & 1 ? nth(s, 3) : nth(s, 2);
    const float c = i & 1 ? nth(s, 5) : nth(s, 4), d = i & 1 ? nth(s, 7) : nth(s, 6);
    const float ab = i & 2 ? b : a, cd = i & 2 ? d : c;
    return i & 4 ? cd : ab;
  }

  // Appends what is above its row's bound; counts on where there is no room.
  __device__ __forceinline__ void list(const float (&acc)[kScores], int tile_key, Rows& rows) {
    constexpr int kGroups = kScores / 16;
    int largest[kGroups][2];
    bool near[kGroups], any = !positive_;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int half = 0; half < 2; ++half) largest[group][half] = largest_bits(acc + 16 * group + 2 * half);
      near[group] = largest[group][0] > __float_as_int(rows.bound[0]) ||
                    largest[group][1] > __float_as_int(rows.bound[1]);
      any |= near[group];
    }
    if (!__any_sync(kWarp, any)) return;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      if (kGroups > 1 && !__any_sync(kWarp, near[group] || !positive_)) continue;
      const float* const s = acc + 16 * group;
      const int key = tile_key + 2 * (static_cast<int>(threadIdx.x) % 4) + 32 * group;
      if (__any_sync(kWarp, max(largest[group][0], largest[group][1]) >= kPoison)) [[unlikely]] {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (quad_any(largest[group][half] >= kPoison) && rows.status[half] == RowStatus::open)
            rows.close(half, RowStatus::poisoned);
        }
      }
      unsigned mask[2] = {above(s, rows.bound[0]), above(s + 2, rows.bound[1])};
      const auto key_of = [&](int bit) { return key + 4 * ((7 - bit) & 6) + ((7 - bit) & 1); };
      const bool single =
          positive_ && !__any_sync(kWarp, (mask[0] & (mask[0] - 1)) | (mask[1] & (mask[1] - 1)));
      do {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int bit = 31 - __clz(mask[half]);
          const float score = single ? __int_as_float(largest[group][half]) : select(s + 2 * half, 7 - bit);
          if (mask[half] != 0) {
            const int slot = min(rows.count[half], Lists::kRoom);  // the last slot is for what is lost
            lists_.scores[half][slot][threadIdx.x] = score;
            lists_.keys[half][slot][threadIdx.x] = key_of(bit);
          }
          rows.count[half] += mask[half] != 0;
          mask[half] &= (1u << (bit & 31)) - 1;
        }
      } while (!single && __any_sync(kWarp, mask[0] | mask[1]));
    }
  }

  Lists& lists_;
  const Entmax& entmax_;
  bool positive_ = false;
};

}  // namespace splash::gpu::entmax
