#pragma once
// What a pass of the dense path sums: the arithmetic of one alpha, and sums over 64 keys in a warpgroup's
// registers. acc[4 j + 2 half + e] is the score of key 8 j + 2 (lane % 4) + e and row lane / 4 + 8 half of
// the warp.

#include <type_traits>

#include "gpu/arch/mma.cuh"
#include "gpu/entmax/math/arithmetic.cuh"
#include "gpu/entmax/math/threshold_root.h"

namespace splash::gpu::entmax::hopper {

constexpr int kPart = 64;  // keys per product

enum class Kind {
  square,
  linear,
  any
};  // alpha 1.5; alpha 2; any alpha, and scores too large for the other two
template <Kind kKind>
using KindOf = std::integral_constant<Kind, kKind>;

// min(max(a b + c, 0), 1); NaN becomes 0. One instruction at full rate; a maximum runs at half.
__device__ __forceinline__ float saturated_fma(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  float d;
  asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(d) : "f"(a), "f"(b), "f"(c));
  return d;
#else
  const float d = fmaf(a, b, c);
  return d > 0 ? fminf(d, 1) : 0;
#endif
}
// -inf for 0 and what is denormal.
__device__ __forceinline__ float log2_approx(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return log2f(fabsf(x) < 0x1p-126f ? 0 : x);
#endif
}

// The two rows of a lane, equal in the four lanes of its quad. A closed row has a shift of -inf: no score
// exceeds its tau.
struct DenseRows {
  ThresholdRoot root[2];
  float pivot[2] = {0, 0};  // 0 except for Kind::any
  float rest[2] = {0, 0};   // what the float shift cannot hold; 0 except for Kind::any
  float largest[2] = {-INFINITY, -INFINITY};
  bool open[2] = {false, false}, poisoned[2] = {false, false};

  // Drops what only the search for tau needs: the product with V needs the registers.
  __device__ __forceinline__ void forget() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      root[half].forget();
      largest[half] = -INFINITY;
    }
  }

  __device__ __forceinline__ void close(int half) {
    open[half] = false;
    root[half].shift = -INFINITY;
  }
};

template <Kind kKind>
struct Arithmetic {
  float gain, beta;

  // z - tau, 0 where it is negative. It is cut at 1, which only matters before the largest score is known: f
  // >= 1 stays f >= 1, and Newton's steps stay certified, for (1 - d)^beta >= 1 - beta d.
  __device__ __forceinline__ float excess(float score, float pivot, float shift) const {
    return saturated_fma(gain, kKind == Kind::any ? score - pivot : score, shift);
  }
  __device__ __forceinline__ float excess(float score, const DenseRows& rows, int half) const {
    if constexpr (kKind != Kind::any) return excess(score, 0, rows.root[half].shift);
    return __saturatef(fmaf(gain, score - rows.pivot[half], rows.root[half].shift) + rows.rest[half]);
  }
  // u^(beta - 1) of u >= 0; 0 where u is 0. Without a branch, or powers would wait for one another: log2 of 0
  // is -inf, and 2^-inf is 0 for any exponent above 0. u^kLeastExponent is 1 in float.
  static constexpr float kLeastExponent = 0x1p-100f;
  __device__ __forceinline__ float slope(float u) const {
    if constexpr (kKind == Kind::square) return u;
    if constexpr (kKind == Kind::linear) return u > 0 ? 1.0f : 0.0f;
    return slope_of_log2(log2_approx(u));
  }
  __device__ __forceinline__ float slope_of_log2(float log2_u) const {
    return arch::exp2_approx(fmaxf(beta - 1, kLeastExponent) * log2_u);
  }
  __device__ __forceinline__ float weight(float u) const { return kKind == Kind::linear ? u : u * slope(u); }

  // Weights for the product with V, times kScale: fp16 would lose the small ones.
  template <class T>
  static constexpr float kScale = std::is_same_v<T, __half> ? 16384.0f : 1.0f;

  template <class T>
  __device__ __forceinline__ float scaled_weight(float score, const DenseRows& rows, int half) const {
    constexpr float kS = kScale<T>, kRoot = kKind == Kind::square ? 128.0f : kS;  // of 16384
    if constexpr (kS == 1) {
      return weight(excess(score, rows, half));
    } else if constexpr (kKind == Kind::any) {
      return kS * weight(excess(score, rows, half));
    } else {
      const float u = fmaxf(__fmaf_rn(kRoot * gain, score, kRoot * rows.root[half].shift), 0.0f);
      return kKind == Kind::square ? u * u : u;
    }
  }
};

// Whether a weight takes a logarithm and an exponential. Keys without weight are neighbours more often than
// not: where a warp's 16 rows give none of kStep keys weight (any_above_0), it takes none of their powers.
template <Kind kKind>
inline constexpr bool takes_powers = kKind == Kind::any;
constexpr int kStep = 16,
              kStepScores = kStep / 2;  // keys of a step, as wgmma takes weights; its scores of a lane

// Whether a lane of the warp holds one above 0 among those of a step; all are at least 0. By the whole warp.
__device__ __forceinline__ bool any_above_0(const float (&u)[kPart / 2], int step) {
  uint32_t bits = 0;
#pragma unroll
  for (int j = 0; j < kStepScores; ++j) bits |= __float_as_uint(u[kStepScores * step + j]);
  return __any_sync(kWarp, bits != 0);
}

// f and its slope (without the factor beta), and the largest score as bits: positive floats are ordered by
// their bits, +inf and NaN above them.
struct DenseSums {
  static constexpr int kNone = static_cast<int>(0xFF800000), kPoison = 0x7F800000;  // the bits of -inf, +inf
  float sum[2] = {0, 0}, slope[2] = {0, 0};
  float total[2] = {0, 0};  // of earlier partial sums
  int most[2] = {kNone, kNone};

  // Sums 64 keys first: that keeps rounding errors small in long rows of equal weights.
  template <Kind kKind>
  __device__ __forceinline__ void add(const float (&acc)[kPart / 2], const Arithmetic<kKind>& arithmetic,
                                      const DenseRows& rows) {
    if constexpr (takes_powers<kKind>) {
      add_powers(acc, arithmetic, rows);
    } else {
      float part_sum[2] = {0, 0}, part_slope[2] = {0, 0};
#pragma unroll
      for (int i = 0; i < kPart / 4; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int j = 4 * (i / 2) + 2 * half;
          const float score = acc[j + i % 2];
          const float u = arithmetic.excess(score, rows, half);
          if constexpr (kKind == Kind::linear) {
            part_sum[half] += u;
            part_slope[half] += arithmetic.slope(u);
          } else {
            const float u_slope = arithmetic.slope(u);
            part_sum[half] = fmaf(u, u_slope, part_sum[half]);
            part_slope[half] += u_slope;
          }
          if (i % 2 == 1)
            most[half] = __vimax3_s32(most[half], __float_as_int(acc[j]), __float_as_int(acc[j + 1]));
        }
      }
      take_part(part_sum, part_slope);
    }
  }

  template <Kind kKind>
  __device__ __forceinline__ void add_powers(const float (&acc)[kPart / 2],
                                             const Arithmetic<kKind>& arithmetic, const DenseRows& rows) {
    float u[kPart / 2];
#pragma unroll
    for (int j = 0; j < kPart / 2; ++j) u[j] = arithmetic.excess(acc[j], rows, j / 2 % 2);
#pragma unroll
    for (int j = 0; j < kPart / 2; j += 2)
      most[j / 2 % 2] = __vimax3_s32(most[j / 2 % 2], __float_as_int(acc[j]), __float_as_int(acc[j + 1]));
    float part_sum[2] = {0, 0}, part_slope[2] = {0, 0};
#pragma unroll
    for (int step = 0; step < kPart / kStep; ++step) {
      if (!any_above_0(u, step)) continue;
#pragma unroll
      for (int j = kStepScores * step; j < kStepScores * (step + 1); ++j) {
        const float u_slope = arithmetic.slope(u[j]);
        part_sum[j / 2 % 2] = fmaf(u[j], u_slope, part_sum[j / 2 % 2]);
        part_slope[j / 2 % 2] += u_slope;
      }
    }
    take_part(part_sum, part_slope);
  }

  __device__ __forceinline__ void take_part(const float (&part_sum)[2], const float (&part_slope)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] += part_sum[half];
      slope[half] += part_slope[half];
#ifdef __CUDA_ARCH__
      // Keeps the compiler from moving these sums behind the wait for the next product.
      asm volatile("" : "+f"(sum[half]), "+f"(slope[half]), "+r"(most[half])::"memory");
#endif
    }
  }

  __device__ __forceinline__ void fold_partial() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      total[half] += sum[half];
      sum[half] = 0;
    }
  }

  // Sums over the quad's lanes, after the last fold_partial.
  __device__ __forceinline__ void reduce() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] = quad_sum(total[half] + sum[half]);
      slope[half] = quad_sum(slope[half]);
      most[half] = max(most[half], __shfl_xor_sync(kWarp, most[half], 1));
      most[half] = max(most[half], __shfl_xor_sync(kWarp, most[half], 2));
    }
  }
};

}  // namespace splash::gpu::entmax::hopper
