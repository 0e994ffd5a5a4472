#pragma once
// The dense path's kernels for one element type. One .cu per type includes it, so that they compile in
// parallel.

#include "gpu/entmax/hopper/dense/dense.h"
#include "gpu/entmax/hopper/dense/kernel.cuh"

namespace splash::gpu::entmax::hopper {

template <class T, int kPanels>
DenseKernel dense_kernel_with() {
  using Tiles = DenseTiles<kPanels>;
  return {.function = reinterpret_cast<const void*>(dense_kernel<T, kPanels>),
          .threads = Tiles::kThreads,
          .shared_bytes = int{sizeof(Tiles)},
          .queries = Tiles::kQueries,
          .keys = Tiles::kKeys,
          .stages = Tiles::kStages};
}

template <class T>
DenseKernel dense_kernel_of(int64_t head_dim) {
  if (head_dim <= 64) return dense_kernel_with<T, 1>();
  if (head_dim <= 128) return dense_kernel_with<T, 2>();
  if (head_dim <= 192) return dense_kernel_with<T, 3>();
  return dense_kernel_with<T, 4>();
}

}  // namespace splash::gpu::entmax::hopper
