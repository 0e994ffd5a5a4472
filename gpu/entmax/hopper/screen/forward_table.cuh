#pragma once
// The screening kernels for one element type. One .cu per type includes it, so that they compile in parallel.

#include "gpu/entmax/hopper/screen/forward_kernel.cuh"
#include "gpu/entmax/hopper/screen/forward_kernel.h"

namespace splash::gpu::entmax::hopper {

template <class T, int kPanels, bool kLong>
ForwardKernel forward_kernel_with() {
  using Tiles = ForwardTiles<kPanels, kLong>;
  static_assert(Tiles::kBlocks * (sizeof(Tiles) + 1024) <= 228 * 1024, "the shared memory of an SM");
  return {.function = reinterpret_cast<const void*>(forward_kernel<T, kPanels, kLong>),
          .queries = Tiles::kQueries,
          .keys = Tiles::kKeys,
          .stages = Tiles::kStages,
          .threads = Tiles::kThreads,
          .shared_bytes = int{sizeof(Tiles)}};
}

template <class T>
ForwardKernel forward_kernel_of(int64_t head_dim, bool long_lists) {
  const int panels = static_cast<int>((head_dim + 63) / 64);
  if (panels == 1) return long_lists ? forward_kernel_with<T, 1, true>() : forward_kernel_with<T, 1, false>();
  if (panels == 2) return long_lists ? forward_kernel_with<T, 2, true>() : forward_kernel_with<T, 2, false>();
  if (panels == 3) return long_lists ? forward_kernel_with<T, 3, true>() : forward_kernel_with<T, 3, false>();
  return long_lists ? forward_kernel_with<T, 4, true>() : forward_kernel_with<T, 4, false>();
}

}  // namespace splash::gpu::entmax::hopper
