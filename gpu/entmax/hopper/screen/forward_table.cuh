#pragma once
// The screening kernels for one element type, with or without ranges. One .cu for each includes it, so that
// they compile in parallel.

#include "gpu/entmax/hopper/screen/forward_kernel.cuh"
#include "gpu/entmax/hopper/screen/forward_kernel.h"

namespace splash::gpu::entmax::hopper {

template <class T, int kPanels, bool kLong, bool kRanges>
ForwardKernel forward_kernel_with() {
  using Tiles = ForwardTiles<kPanels, kLong>;
  static_assert(Tiles::kBlocks * (sizeof(Tiles) + 1024) <= 228 * 1024, "the shared memory of an SM");
  return {.function = reinterpret_cast<const void*>(forward_kernel<T, kPanels, kLong, kRanges>),
          .queries = Tiles::kQueries,
          .keys = Tiles::kKeys,
          .stages = Tiles::kStages,
          .threads = Tiles::kThreads,
          .shared_bytes = int{sizeof(Tiles)}};
}

template <class T, bool kRanges>
ForwardKernel forward_kernel_of(int64_t head_dim, bool long_lists) {
  const auto with = [&]<int kPanels>() {
    return long_lists ? forward_kernel_with<T, kPanels, true, kRanges>()
                      : forward_kernel_with<T, kPanels, false, kRanges>();
  };
  if (head_dim <= 64) return with.template operator()<1>();
  if (head_dim <= 128) return with.template operator()<2>();
  if (head_dim <= 192) return with.template operator()<3>();
  return with.template operator()<4>();
}

}  // namespace splash::gpu::entmax::hopper
