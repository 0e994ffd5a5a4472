#pragma once
// The rows that the screen could not hold. Compiles without nvcc.

#include "core/dtype.h"
#include "gpu/engine/memory.h"
#include "gpu/entmax/problem.h"

namespace splash::gpu::entmax {

constexpr int kRowPathThreads = 256;  // a block

// Computes problem.crowded_rows. scratch: [blocks, kv_len].
void launch_row_path(const Problem& problem, Dtype dtype, int blocks, float* scratch, StreamHandle stream);
const void* row_kernel_of(Dtype dtype);

}  // namespace splash::gpu::entmax
