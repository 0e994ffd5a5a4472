#pragma once
// Keys with many entries, a part of the column pass.

#include "gpu/entmax/backward/problem.h"

namespace splash::gpu::entmax::backward {

void compute_long_columns(const BackwardProblem& p, Dtype dtype, StreamHandle stream);

}  // namespace splash::gpu::entmax::backward
