#pragma once
// Launches the kernel of a step, in clusters where a unit has several blocks, or so that all blocks run
// together.

#include "gpu/decode/problem.h"
#include "gpu/engine/memory.h"
#include "gpu/entmax/schedule/launch.cuh"

namespace splash::gpu::decode {

// Whether the kernels form clusters: nvcc compiles this file for sm_90, and the device has that.
inline bool has_clusters() {
  return entmax::waits_for_kernels_before() && device_attribute(cudaDevAttrComputeCapabilityMajor) >= 9;
}

// Every device with clusters schedules 8 blocks together; whole ones schedule 16.
inline int most_blocks_of_cluster() {
  return !has_clusters() ? 1 : entmax::multiprocessors() >= 100 ? 16 : 8;
}

// Blocks of a team that is no cluster, at most.
inline int most_blocks_together() {
  return has_clusters() && device_attribute(cudaDevAttrCooperativeLaunch) != 0 ? kMostTeam : 1;
}

__device__ __forceinline__ unsigned char* dynamic_shared_memory() {
  extern __shared__ __align__(16) unsigned char decode_memory[];
  return decode_memory;
}

// cluster: blocks of a cluster, a power of two up to 16.
template <class Argument>
void launch_clusters(const char* name, void (*kernel)(Argument), unsigned blocks, int threads,
                     int shared_bytes, int cluster, StreamHandle stream, const Argument& argument) {
  const auto* function = reinterpret_cast<const void*>(kernel);
  if (cluster > 8)
    check_cuda(cudaFuncSetAttribute(function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
               "allow clusters of 16 blocks");
  void* arguments[] = {const_cast<void*>(static_cast<const void*>(&argument))};
  entmax::launch(name, function, dim3(blocks), threads, shared_bytes, stream, arguments, has_clusters(),
                 has_clusters() ? cluster : 1);
}

// Launches a kernel of which all blocks run at the same time (a cooperative launch); it begins with
// wait_for_kernels_before. team: blocks that meet (Team, team.cuh).
template <class Argument>
void launch_together(const char* name, void (*kernel)(Argument), unsigned blocks, int threads,
                     int shared_bytes, int /*team*/, StreamHandle stream, const Argument& argument) {
  void* arguments[] = {const_cast<void*>(static_cast<const void*>(&argument))};
  entmax::launch(name, reinterpret_cast<const void*>(kernel), dim3(blocks), threads, shared_bytes, stream,
                 arguments, has_clusters(), 1, true);
}

}  // namespace splash::gpu::decode
