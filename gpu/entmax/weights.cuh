#pragma once
// The arithmetic of entmax (Peters, Niculae, Martins 2019): p = [z - tau]_+^beta with z = (alpha - 1) s.

#include "gpu/arch/reduce.cuh"
#include "gpu/entmax/problem.h"

namespace splash::gpu::entmax {

constexpr unsigned kWarp = 0xFFFFFFFFu;

// What slope() may know of alpha at compile time.
struct AnyAlpha {};
struct SquareWeights {};  // alpha = 1.5
struct LinearWeights {};  // alpha = 2

struct Entmax {
  float gain;  // z = gain * <q, k>
  float beta;  // 1 / (alpha - 1)
  bool is_square, is_linear;

  Entmax() = default;
  __device__ __forceinline__ Entmax(float alpha, float scale)
      : gain((alpha - 1) * scale),
        beta(1 / (alpha - 1)),
        is_square(alpha == 1.5f),
        is_linear(alpha == 2.0f) {}

  // Of u = z - tau: u^(beta - 1), 0 where u is not above 0. The weight of p is u times it; its derivative,
  // beta times it.
  __device__ __forceinline__ float slope(float u) const {
    return is_square   ? slope(SquareWeights{}, u)
           : is_linear ? slope(LinearWeights{}, u)
                       : slope(AnyAlpha{}, u);
  }
  __device__ __forceinline__ float slope(AnyAlpha, float u) const {
    return u > 0 ? exp2f((beta - 1) * log2f(u)) : 0.0f;
  }
  __device__ __forceinline__ float slope(SquareWeights, float u) const { return fmaxf(u, 0.0f); }
  __device__ __forceinline__ float slope(LinearWeights, float u) const { return u > 0 ? 1.0f : 0.0f; }
  __device__ __forceinline__ float weight(float u) const { return fmaxf(u, 0.0f) * slope(u); }

  // Calls loop(kind): for loops that are to be compiled for each kind of alpha.
  template <class Loop>
  __device__ __forceinline__ void visit(const Loop& loop) const {
    if (is_square) {
      loop(SquareWeights{});
    } else if (is_linear) {
      loop(LinearWeights{});
    } else {
      loop(AnyAlpha{});
    }
  }
};

__device__ __forceinline__ Entmax entmax_of(const Problem& p, int head) {
  return {p.alpha[p.alphas == 1 ? 0 : head % p.q_heads], p.scale};
}

using arch::quad_any;
using arch::quad_max;
using arch::quad_sum;

// tau of one score alone, rounded down: the score itself stays above it. In the units of the score, where z =
// gain * score.
__device__ __forceinline__ float bound_of_largest(float score, float gain) {
  return __fsub_rd(score, __fdividef(1, gain));
}

// A Newton step for the root of f(t) = sum of weights - 1, where z = gain * t. From the left it never passes
// the root where the weights are convex (alpha <= 2), so every iterate bounds tau from below.
__device__ __forceinline__ float newton(float beta_gain, float t, float sum, float slope) {
  const float step = __fdividef(sum - 1, beta_gain * slope);
  return slope > 0 ? fmaxf(t, t + step) : t;
}

}  // namespace splash::gpu::entmax
