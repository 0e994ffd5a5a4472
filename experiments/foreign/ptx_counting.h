#pragma once
// Puts calls into a kernel's PTX that count what it does: passes through shared memory with their bank
// conflicts, sectors of global memory, instructions. So they are known where a GPU denies its counters. What
// is called stands in splash_bench.h, under SPLASH_BENCH_COUNT.

#include <string>

namespace splash::experiments {

struct CountingPtx {
  std::string text;
  // false: something moves data that no call counts (cp.async, ldmatrix, tensor copies, generic addresses)
  bool counts_shared = true, counts_global = true;
};

// PTX as nvcc writes it, of the header's functions and the kernels. Only kernels and functions that are not
// the header's own are changed.
CountingPtx with_counting(const std::string& ptx);

}  // namespace splash::experiments
