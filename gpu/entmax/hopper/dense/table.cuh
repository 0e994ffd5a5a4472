#pragma once
// The dense path's kernels for one element type, with or without ranges. One .cu for each includes it, so
// that they compile in parallel.

#include "gpu/entmax/hopper/dense/dense.h"
#include "gpu/entmax/hopper/dense/kernel.cuh"

namespace splash::gpu::entmax::hopper {

template <class T, int kPanels, bool kRanges>
DenseKernel dense_kernel_with() {
  using Tiles = DenseTiles<kPanels>;
  return {.function = reinterpret_cast<const void*>(dense_kernel<T, kPanels, kRanges>),
          .threads = Tiles::kThreads,
          .shared_bytes = int{sizeof(Tiles)},
          .queries = Tiles::kQueries,
          .keys = Tiles::kKeys,
          .stages = Tiles::kStages};
}

template <class T, bool kRanges>
DenseKernel dense_kernel_of(int64_t head_dim) {
  if (head_dim <= 64) return dense_kernel_with<T, 1, kRanges>();
  if (head_dim <= 128) return dense_kernel_with<T, 2, kRanges>();
  if (head_dim <= 192) return dense_kernel_with<T, 3, kRanges>();
  return dense_kernel_with<T, 4, kRanges>();
}

}  // namespace splash::gpu::entmax::hopper
