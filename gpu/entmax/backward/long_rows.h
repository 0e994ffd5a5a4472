#pragma once
// The rows that row_gradients (rows.cu) leaves out, one block each. Compiles without nvcc.

#include "gpu/entmax/backward/problem.h"

namespace splash::gpu::entmax::backward {

void compute_long_rows(const BackwardProblem& p, Dtype dtype, StreamHandle stream);

}  // namespace splash::gpu::entmax::backward
