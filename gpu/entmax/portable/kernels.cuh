#pragma once
// The kernels for one element type. One .cu per type includes it, so that they compile in parallel.

#include "gpu/entmax/portable/screen_kernel.cuh"
#include "gpu/entmax/portable/stream_kernel.cuh"

namespace splash::gpu::entmax::portable {

template <class T, int kDim>
Kernel kernel_with(bool streams) {
  using Tiles = portable::Tiles<T, kDim>;
  static_assert(sizeof(ScreenShared<T, kDim>) <= 99 * 1024 && sizeof(StreamShared<T, kDim>) <= 99 * 1024,
                "what a block of compute capability 8.6 and 8.9 may have");
  return {.function = streams ? reinterpret_cast<const void*>(stream_kernel<T, kDim>)
                              : reinterpret_cast<const void*>(screen_kernel<T, kDim>),
          .queries = Tiles::kQueries,
          .threads = Tiles::kThreads,
          .shared_bytes =
              static_cast<int>(streams ? sizeof(StreamShared<T, kDim>) : sizeof(ScreenShared<T, kDim>))};
}

template <class T>
Kernel kernel_of(int64_t head_dim, bool streams) {
  if constexpr (sizeof(T) == 4) {
    if (head_dim <= 32) return kernel_with<T, 32>(streams);
  }
  if (head_dim <= 64) return kernel_with<T, 64>(streams);
  if (head_dim <= 128) return kernel_with<T, 128>(streams);
  return kernel_with<T, 256>(streams);
}

}  // namespace splash::gpu::entmax::portable
