#pragma once
// The arithmetic that the kernels of every path share. entmax.h and threshold_root.h also compile for the
// CPU, where they are tested; vectors.cuh packs and unpacks 16-bit elements. In: values in registers. Out:
// values in registers. Nothing in this folder reads or writes shared memory.
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

// tau of a row with this score alone, rounded down so that the score stays above it. In units of the score; z
// = gain * score.
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
