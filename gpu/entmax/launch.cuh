#pragma once
// launch.h for what nvcc compiles.

#include "gpu/entmax/launch.h"

namespace splash::gpu::entmax {

// Whether nvcc compiles this file for sm_90 at all: where sm_90's code comes of older PTX, nothing waits.
constexpr bool waits_for_kernels_before() {
  for (const int architecture : {__CUDA_ARCH_LIST__}) {
    if (architecture >= 900) return true;
  }
  return false;
}

// Every kernel launched like this begins with it: what the kernels before wrote is there afterwards.
__device__ __forceinline__ void wait_for_kernels_before() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), dim3 blocks, int threads, StreamHandle stream,
            const Arguments&... arguments) {
  const auto with_addresses = [&](Parameters... converted) {
    void* addresses[] = {const_cast<void*>(static_cast<const void*>(&converted))...};
    launch(name, reinterpret_cast<const void*>(kernel), blocks, threads, 0, stream, addresses,
           waits_for_kernels_before());
  };
  with_addresses(Parameters(arguments)...);
}

}  // namespace splash::gpu::entmax
