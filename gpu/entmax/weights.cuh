#pragma once
// What kernels need of entmax's arithmetic: its alpha from device memory, sums over a row's lanes, bounds.

#include "gpu/arch/reduce.cuh"
#include "gpu/entmax/entmax.h"
#include "gpu/entmax/problem.h"

namespace splash::gpu::entmax {

constexpr unsigned kWarp = 0xFFFFFFFFu;

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
