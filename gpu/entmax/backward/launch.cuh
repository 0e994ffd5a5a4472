#pragma once
// Kernels that follow one another closely: on sm_90 the blocks of a kernel get on their way while the last
// ones of the kernel before still run (programmatic dependent launch), and wait there.

#include <string>

#include "gpu/cuda_check.h"
#include "gpu/engine/memory.h"

namespace splash::gpu::entmax::backward {

// Every kernel of backward begins with this: what the kernels before wrote is there afterwards.
__device__ __forceinline__ void wait_for_kernels_before() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

inline int multiprocessors() {
  return device_attribute(cudaDevAttrMultiProcessorCount);
}

template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), unsigned blocks, int threads,
            StreamHandle stream, const Arguments&... arguments) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = device_attribute(cudaDevAttrComputeCapabilityMajor) >= 9 ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...), std::string("launch ") + name);
}

}  // namespace splash::gpu::entmax::backward
