#pragma once
// The kernels that screen, by what they are compiled for. Compiles without nvcc.

#include <cstdint>

#include "core/dtype.h"

namespace splash::gpu::entmax {

struct ForwardKernel {
  const void* function = nullptr;                                        // of (Problem, CUtensorMap of K)
  int queries = 0, keys = 0, stages = 0, threads = 0, shared_bytes = 0;  // queries, keys: of a tile
};

// With short lists, for all rows; with long ones, for problem.rows: those that outgrew the short ones.
ForwardKernel forward_kernel_of(Dtype dtype, int64_t head_dim, bool long_lists);

}  // namespace splash::gpu::entmax
