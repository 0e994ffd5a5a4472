#pragma once
// The screening kernels for one element type, one kind of rows. One .cu for each includes it, so that
// they compile in parallel.

#include "gpu/entmax/hopper/screen/forward_kernel.cuh"
#include "gpu/entmax/hopper/screen/forward_kernel.h"

namespace splash::gpu::entmax::hopper {

template <class T, int kPanels, RowKeys kRows>
ForwardKernel forward_kernel_with() {
  using Tiles = ForwardTiles<kPanels, kRows == RowKeys::largest>;
  static_assert(Tiles::kBlocks * (sizeof(Tiles) + 1024) <= 228 * 1024, "the shared memory of an SM");
  return {.function = reinterpret_cast<const void*>(forward_kernel<T, kPanels, kRows>),
          .queries = Tiles::kQueries,
          .keys = Tiles::kKeys,
          .stages = Tiles::kStages,
          .threads = Tiles::kThreads,
          .warps_per_sm = Tiles::kBlocks * Tiles::kWarps,
          .shared_bytes = int{sizeof(Tiles)}};
}

template <class T, RowKeys kRows>
ForwardKernel forward_kernel_of(int64_t head_dim) {
  if (head_dim <= 64) return forward_kernel_with<T, 1, kRows>();
  if (head_dim <= 128) return forward_kernel_with<T, 2, kRows>();
  if (head_dim <= 192) return forward_kernel_with<T, 3, kRows>();
  return forward_kernel_with<T, 4, kRows>();
}

}  // namespace splash::gpu::entmax::hopper
