#pragma once
// Kernels that follow one another closely: on sm_90 the blocks of a kernel get on their way while the last
// ones of the kernel before still run (programmatic dependent launch), and wait there (launch.cuh). A kernel
// that did not wait would end before the ones before it, and those behind it would see what these have not
// written yet. Compiles without nvcc.

#include <string>

#include "gpu/cuda_check.h"
#include "gpu/engine/memory.h"

namespace splash::gpu::entmax {

inline int multiprocessors() {
  return device_attribute(cudaDevAttrMultiProcessorCount);
}

// A kernel by its address, with the addresses of its arguments. waits: whether it begins with
// wait_for_kernels_before, compiled for sm_90.
inline void launch(const std::string& name, const void* kernel, dim3 blocks, int threads, int shared_bytes,
                   StreamHandle stream, void** arguments, bool waits = true) {
  if (shared_bytes > 0)
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
               "ask for shared memory");
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = waits && device_attribute(cudaDevAttrComputeCapabilityMajor) >= 9 ? 1 : 0;
  check_cuda(cudaLaunchKernelExC(&config, kernel, arguments), "launch " + name);
}

}  // namespace splash::gpu::entmax
