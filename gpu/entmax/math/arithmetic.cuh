#pragma once
// The arithmetic that the kernels of every path share. entmax.h and threshold_root.h also compile for the
// CPU, where they are tested; vectors.cuh loads, stores, packs and unpacks 16-bit elements. Everything here
// works on values in registers; nothing in this folder declares shared memory.
//
// Here: a head's alpha, sums over a quad's lanes, bounds of tau.

#include "gpu/arch/reduce.cuh"
#include "gpu/entmax/entmax.h"
#include "gpu/entmax/problem.h"

namespace splash::gpu::entmax {

constexpr unsigned kWarp = 0xFFFFFFFFu;

__device__ __forceinline__ Entmax entmax_of(const ForwardProblem& p, int head) {
  return {p.alpha[p.alphas == 1 ? 0 : head % p.q_heads], p.scale};
}

using arch::quad_any;
using arch::quad_max;
using arch::quad_sum;

// tau of a row that has only this score: score - 1 / gain, in units of the score (z = gain * score). Rounded
// down, so that the score stays above it.
__device__ __forceinline__ float bound_of_largest(float score, float gain) {
  return __fsub_rd(score, __fdividef(1, gain));
}

// A Newton step for the root of f(t) = sum of weights - 1, where z = gain * t. For alpha <= 2 the weights are
// convex, so a step from the left never passes the root: every iterate is a lower bound of tau.
__device__ __forceinline__ float newton(float beta_gain, float t, float sum, float slope) {
  const float step = __fdividef(sum - 1, beta_gain * slope);
  return slope > 0 ? fmaxf(t, t + step) : t;
}

}  // namespace splash::gpu::entmax
