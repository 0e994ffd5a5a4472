#pragma once
// The dense path: rows with broad supports, as lists per head, on tensor cores. Compiles without nvcc.
//
//   kernel.cuh               tau by passes over the keys, then the product with V
//   tiles.cuh                the ring of tiles, and their products
//   sums.cuh                 what a pass sums
//   finish.cuh, store.cuh    output and tau; the support
//
// In: the listed rows, Q, K, V, and bounds of tau from the screen. Out: their output, tau and support. The
// block's shared memory (DenseTiles): TMA writes ring[stage] after full[stage] was armed. Thread 0 issues the
// loads, once every warp has arrived on empty[stage]. Warps read a stage between full[stage] and their
// arrival on empty[stage]. Queries and begins of rows in shared memory are written once, before the first
// __syncthreads.

#include "core/dtype.h"
#include "gpu/engine/memory.h"
#include "gpu/entmax/problem.h"

namespace splash::gpu::entmax::hopper {

struct DenseKernel {
  const void* function = nullptr;
  int threads = 0, shared_bytes = 0, queries = 0, keys = 0, stages = 0;  // queries, keys: per tile
  int least_queries = 64;  // that a block takes at a time, of a head that has as many
};

// ranges: for problems whose rows have ranges (ForwardProblem::has_ranges).
DenseKernel dense_kernel_of(Dtype dtype, int64_t head_dim, bool ranges);
// One for each multiprocessor, or as many as have rows.
int64_t dense_blocks(int64_t heads, int64_t q_len, const DenseKernel& kernel, int multiprocessors);

// Computes problem.rows: output, tau, and the support where problem.support has columns.
void launch_dense(const ForwardProblem& problem, Dtype dtype, StreamHandle stream);

}  // namespace splash::gpu::entmax::hopper
