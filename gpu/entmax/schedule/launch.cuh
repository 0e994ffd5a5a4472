#pragma once
// launch.h for files that nvcc compiles.

#include "gpu/entmax/schedule/launch.h"

namespace splash::gpu::entmax {

// Whether nvcc compiles this file for sm_90. Where sm_90 runs code from older PTX, kernels do not wait.
constexpr bool waits_for_kernels_before() {
  for (const int architecture : {__CUDA_ARCH_LIST__}) {
    if (architecture >= 900) return true;
  }
  return false;
}

// The halves of wait_for_kernels_before, for kernels that take them in the other order. One may run beside
// the previous kernel, and waits at its end. Others let the next one be launched while they wait: its blocks
// begin with a wait of their own.
__device__ __forceinline__ void wait_for_kernels_before_alone() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// The first statement of every kernel launched so: afterwards, previous kernels are done and all their writes
// visible. The trigger only lets the next kernel's blocks be launched; they wait for this one's end likewise.
__device__ __forceinline__ void wait_for_kernels_before() {
  wait_for_kernels_before_alone();
  let_next_kernel_start();
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
