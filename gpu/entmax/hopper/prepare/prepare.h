#pragma once
// Prepares the keys for the screen. In: K. Out, in the workspace: K in float16 (half_keys, for bf16), an
// error bound per kErrorKeys keys (errors), and copies of the keys that are sampled first (high_norm_keys,
// high_norm.h). Each block of prepare_kernel.cuh writes what belongs to its own kErrorKeys keys and nothing
// else. Compiles without nvcc.
//
// The screen multiplies scaled queries q' (8 <= |q'| < 16) with keys k in float16, 16 dimensions per step,
// and each step rounds the sum (wgmma_f16.cuh). By Cauchy and Schwarz the sum after j steps is at most |q'|
// times the norm of k's first 16 j dimensions, |k|_j. So before the last step's rounding, which is relative
// to the score itself, a score is off by at most |q'| times the error of its kErrorKeys keys:
//   2^-11 (max |k|_1 + ... + max |k|_(steps - 1)) + 2^-18 (max |k| + 1),
// the last term for what the steps' sums, of 17 terms each, lose, and for elements that float16 holds as
// subnormal numbers only.

#include "core/dtype.h"
#include "gpu/engine/memory.h"
#include "gpu/entmax/problem.h"
#include "gpu/entmax/support/store_header.h"

namespace splash::gpu::entmax::hopper {

// For the keys from problem.first_block on. Writes problem.errors (+inf where scores might overflow, or where
// keys are NaN or infinite), problem.half_keys for bf16, and problem.high_norm_keys where there are segments.
// And the header of a store.
void prepare_keys(const ForwardProblem& problem, Dtype dtype, StreamHandle stream,
                  const StoreBegin& begin = {});

}  // namespace splash::gpu::entmax::hopper
