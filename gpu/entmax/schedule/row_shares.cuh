#pragma once
// How rows that a kernel before has listed (ForwardProblem::rows) are shared out among blocks.

#include "gpu/entmax/problem.h"

namespace splash::gpu::entmax {

// How many listed rows a block takes at once: a multiple of `least`, up to `most`. As few as keep all SMs
// busy: a block passes over all keys, however few its rows are, so a few rows of many heads must not wait for
// one another. By whole warps.
__device__ __forceinline__ int rows_per_block(const ForwardProblem& p, int least, int most) {
  constexpr int kBlocks = 128;  // about as many as an H100 or H200 has SMs
  int rows = 0;
  for (int head = static_cast<int>(threadIdx.x) % 32; head < p.heads; head += 32) rows += p.rows.counts[head];
  rows = __reduce_add_sync(0xFFFFFFFFu, rows);
  return min(max(rows / (least * kBlocks), 1) * least, most);
}

}  // namespace splash::gpu::entmax
