#pragma once
// The device's side of row_shares.h.

#include "gpu/entmax/problem.h"
#include "gpu/entmax/schedule/row_shares.h"

namespace splash::gpu::entmax {

// Listed rows of all heads. By whole warps.
__device__ __forceinline__ int listed_rows(const ForwardProblem& p) {
  int rows = 0;
  for (int head = static_cast<int>(threadIdx.x) % 32; head < p.heads; head += 32) rows += p.rows.counts[head];
  return __reduce_add_sync(0xFFFFFFFFu, rows);
}

}  // namespace splash::gpu::entmax
