#pragma once
// The rows whose support outgrew the screen's lists, gathered head by head, on tensor cores. Compiles without
// nvcc.

#include "core/dtype.h"
#include "gpu/engine/memory.h"
#include "gpu/entmax/problem.h"

namespace splash::gpu::entmax {

struct DenseKernel {
  const void* function = nullptr;
  int threads = 0, shared_bytes = 0, queries = 0, keys = 0, stages = 0;  // queries, keys: of a tile
};
DenseKernel dense_kernel_of(Dtype dtype, int64_t head_dim);
int64_t dense_blocks(int64_t heads, int64_t q_len, const DenseKernel& kernel);

// Computes problem.rows: output, tau, and their support where problem.support has columns. Blocks
// beyond a head's count end at once.
void launch_dense(const Problem& problem, Dtype dtype, StreamHandle stream);

}  // namespace splash::gpu::entmax
