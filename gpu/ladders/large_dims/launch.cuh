#pragma once
// How the kernels of rungs 4 to 6 are launched: in clusters where asked, and early. sm_90.

#include "gpu/ladders/large_dims/common.cuh"

namespace splash::gpu::large_dims {

// Every kernel that launch_early starts calls both. From the first on the next kernel may come up; the second
// waits until the kernels before this one on the stream have ended and their results can be seen: before it,
// no memory is read or written, but all else can be got ready.
__device__ inline void let_next_kernel_come() {
  cudaTriggerProgrammaticLaunchCompletion();
}
__device__ inline void follow_previous_kernel() {
  cudaGridDependencySynchronize();
}

struct Grid {
  int ranks = 1;     // blocks a cluster, along x
  int64_t rows = 1;  // along y
};

// The kernel's blocks may come up before the kernel before it on the stream has ended.
template <class... Parameters, class... Values>
void launch_early(void (*kernel)(Parameters...), const KernelLaunch& shape, const Grid& grid,
                  cudaStream_t stream, const Values&... values) {
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(grid.ranks), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = {static_cast<unsigned>(shape.blocks / grid.rows), static_cast<unsigned>(grid.rows), 1};
  config.blockDim = {static_cast<unsigned>(shape.threads), 1, 1};
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = grid.ranks > 1 ? 2 : 1;
  if (grid.ranks > 8) {
    check_cuda(cudaFuncSetAttribute(shape.function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
               "allow clusters of 16 blocks");
  }
  check_cuda(cudaLaunchKernelEx(&config, kernel, values...), "launch " + shape.name);
}

}  // namespace splash::gpu::large_dims
