#pragma once
// What the screen reads of the keys: float16 copies, how far products with them may be off, and those that
// are sampled first (pick.h). Compiles without nvcc.
//
// The screen multiplies scaled queries q' (8 <= |q'| < 16) with keys k in float16, 16 dimensions a step, and
// each step rounds the sum (wgmma_f16.cuh). By Cauchy and Schwarz the sum after j steps is at most |q'| times
// the norm of k's first 16 j dimensions, |k|_j. So before the last step's rounding, which is relative to the
// score itself, a score is off by at most |q'| times the error of its kErrorKeys keys:
//   2^-11 (max |k|_1 + ... + max |k|_(steps - 1)) + 2^-18 (max |k| + 1),
// the last term for what the steps' sums, of 17 terms each, lose, and for elements that float16 holds as
// subnormal numbers only.

#include "core/dtype.h"
#include "gpu/engine/memory.h"
#include "gpu/entmax/problem.h"

namespace splash::gpu::entmax {

// Writes problem.errors, +inf where scores might overflow, or keys are NaN or infinite; for bf16
// problem.half_keys; and where some keys are picked problem.picked.
void prepare_keys(const Problem& problem, Dtype dtype, StreamHandle stream);

}  // namespace splash::gpu::entmax
