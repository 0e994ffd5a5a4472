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

// What the rows of a problem see and keep. Each has kernels of its own, for none has a register to spare.
enum class RowKeys {
  below,    // all keys below an end
  ranges,   // a range of keys (ForwardProblem::has_ranges)
  largest,  // the k_keep largest scores of a range
};

ForwardKernel forward_kernel_of(Dtype dtype, int64_t head_dim, RowKeys keys);

}  // namespace splash::gpu::entmax::hopper
