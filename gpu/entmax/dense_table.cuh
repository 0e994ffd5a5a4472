#pragma once
// The kernels of the dense path of one element type. Included by one .cu for each, which compile in parallel.

#include "gpu/entmax/dense.h"
#include "gpu/entmax/dense_kernel.cuh"

namespace splash::gpu::entmax {

template <class T, int kPanels>
DenseKernel dense_kernel_with(bool store) {
  using Tiles = DenseTiles<kPanels>;
  return {.function = store ? reinterpret_cast<const void*>(dense_kernel<T, kPanels, true>)
                            : reinterpret_cast<const void*>(dense_kernel<T, kPanels, false>),
          .threads = Tiles::kThreads,
          .shared_bytes = int{sizeof(Tiles)},
          .queries = Tiles::kQueries,
          .keys = Tiles::kKeys,
          .stages = Tiles::kStages};
}

template <class T>
DenseKernel dense_kernel_of(int64_t head_dim, bool store) {
  if (head_dim <= 64) return dense_kernel_with<T, 1>(store);
  if (head_dim <= 128) return dense_kernel_with<T, 2>(store);
  if (head_dim <= 192) return dense_kernel_with<T, 3>(store);
  return dense_kernel_with<T, 4>(store);
}

}  // namespace splash::gpu::entmax
