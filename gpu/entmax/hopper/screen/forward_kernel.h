#pragma once
// The screening kernels by element type and head_dim. Compiles without nvcc.

#include <cstdint>

#include "core/dtype.h"

namespace splash::gpu::entmax::hopper {

struct ForwardKernel {
  const void* function = nullptr;  // (ForwardProblem, CUtensorMap of K, CUtensorMap of high_norm_keys)
  int queries = 0, keys = 0, stages = 0, threads = 0, warps_per_sm = 0,
      shared_bytes = 0;  // queries, keys: of a tile
};

// ranges: for problems whose rows have ranges (ForwardProblem::has_ranges). They have kernels of their own,
// because the others have no register to spare.
ForwardKernel forward_kernel_of(Dtype dtype, int64_t head_dim, bool ranges);

}  // namespace splash::gpu::entmax::hopper
