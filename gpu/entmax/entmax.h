#pragma once
// The arithmetic of entmax (Peters, Niculae, Martins 2019): p = [z - tau]_+^beta with z = (alpha - 1) s.
// Compiles without nvcc.

#include <cmath>

#include "core/host_device.h"

namespace splash::gpu::entmax {

// What slope() knows of alpha at compile time.
struct AnyAlpha {};
struct SquareWeights {};  // alpha = 1.5
struct LinearWeights {};  // alpha = 2

// Which alpha attention takes. p = u^beta multiplies the float32 rounding error of u by beta: below 1.01 the
// relative error of p would pass 10^-5. Above 2 Newton's bounds are not certified.
inline constexpr float kLeastAttentionAlpha = 1.01f, kMostAttentionAlpha = 2;

constexpr bool attention_takes(float alpha) {  // false for NaN
  return alpha >= kLeastAttentionAlpha && alpha <= kMostAttentionAlpha;
}

// m - tau of a row whose threshold is given as an offset to m, the row's largest z. Clamped to
// [kv_len^(1 - alpha), 1], where the solved m - tau lies, too; NaN for NaN. beta = 1 / (alpha - 1). The
// definition: cpu_ref/attention/given_threshold.h.
SPLASH_HOST_DEVICE float shift_of_offset(float offset, float beta, int kv_len) {
  const float least = exp2f(-log2f(static_cast<float>(kv_len)) / beta);
  return offset == offset ? fminf(1.0f, fmaxf(-offset, least)) : offset;
}

// u^exponent of u > 0, else 0 (also for NaN); exponent >= 0. Without a branch: powers of several u overlap.
SPLASH_HOST_DEVICE float power_above_0(float u, float exponent) {
#ifdef __CUDA_ARCH__
  float logarithm, power;  // what is denormal becomes 0
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(logarithm) : "f"(fmaxf(u, 0x1p-126f)));
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(exponent * logarithm));
#else
  const float power = exp2f(exponent * log2f(fmaxf(u, 0x1p-126f)));
#endif
  return u > 0 ? power : 0.0f;
}

struct Entmax {
  float gain;  // z = gain * <q, k>
  float beta;  // 1 / (alpha - 1)
  bool is_square, is_linear;

  Entmax() = default;
  SPLASH_HOST_DEVICE Entmax(float alpha, float scale)
      : gain((alpha - 1) * scale),
        beta(1 / (alpha - 1)),
        is_square(alpha == 1.5f),
        is_linear(alpha == 2.0f) {}

  // u^(beta - 1) of u = z - tau; 0 where u is not above 0. p's weight u^beta is u * slope(u); the weight's
  // derivative is beta * slope(u).
  SPLASH_HOST_DEVICE float slope(float u) const {
    return is_square   ? slope(SquareWeights{}, u)
           : is_linear ? slope(LinearWeights{}, u)
                       : slope(AnyAlpha{}, u);
  }
  SPLASH_HOST_DEVICE float slope(AnyAlpha /*kind*/, float u) const { return power_above_0(u, beta - 1); }
  SPLASH_HOST_DEVICE float slope(SquareWeights /*kind*/, float u) const { return fmaxf(u, 0.0f); }
  SPLASH_HOST_DEVICE float slope(LinearWeights /*kind*/, float u) const { return u > 0 ? 1.0f : 0.0f; }
  SPLASH_HOST_DEVICE float weight(float u) const { return fmaxf(u, 0.0f) * slope(u); }

  // Calls loop(kind), so that the loop is compiled once per kind of alpha.
  template <class Loop>
  SPLASH_HOST_DEVICE void visit(const Loop& loop) const {
    if (is_square) {
      loop(SquareWeights{});
    } else if (is_linear) {
      loop(LinearWeights{});
    } else {
      loop(AnyAlpha{});
    }
  }
};

}  // namespace splash::gpu::entmax
