#pragma once
// How kernels follow one another: launches (here, launch.cuh), which rows a block takes (block_place.h), and
// the rows that one kernel defers, as lists for the next (gather.h). Compiles without nvcc.
//
// On sm_90, blocks of a kernel start while the last blocks of the previous kernel still run (programmatic
// dependent launch). The invariant: every kernel launched this way waits for the whole previous kernel before
// it reads or writes any memory (wait_for_kernels_before, launch.cuh). A kernel that did not wait could end
// before its predecessors, and its successors would read memory that these have not written yet. Two kernels
// begin without what their predecessors write, as these let them start only after a wait of their own: so all
// kernels before are done. One waits at its end (recalling_kernel, gpu/decode/step.cuh), the other when it
// has asked for its queries (forward_kernel, gpu/entmax/hopper/screen/forward_kernel.cuh).

#include <string>

#include "gpu/cuda_check.h"
#include "gpu/engine/memory.h"

namespace splash::gpu::entmax {

inline int multiprocessors() {
  return device_attribute(cudaDevAttrMultiProcessorCount);
}

// Launches a kernel by its address, with the addresses of its arguments. waits: whether the kernel begins
// with wait_for_kernels_before, compiled for sm_90; else it starts after the previous kernel's end. cluster:
// blocks of a cluster, of which only sm_90 has more than one. together: all blocks run at the same time, or
// the launch fails (a cooperative launch). Throws DeviceError where the launch fails.
inline void launch(const std::string& name, const void* kernel, dim3 blocks, int threads, int shared_bytes,
                   StreamHandle stream, void** arguments, bool waits = true, int cluster = 1,
                   bool together = false) {
  if (shared_bytes > 0)
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
               "ask for shared memory");
  cudaLaunchAttribute attributes[3]{};
  unsigned count = 0;
  if (waits && device_attribute(cudaDevAttrComputeCapabilityMajor) >= 9) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  }
  if (together) {
    attributes[count].id = cudaLaunchAttributeCooperative;
    attributes[count++].val.cooperative = 1;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  check_cuda(cudaLaunchKernelExC(&config, kernel, arguments), "launch " + name);
}

}  // namespace splash::gpu::entmax
