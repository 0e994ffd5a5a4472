#pragma once
// gpu/arch/block_barrier.cuh on the CPU, where the blocks that meet at a barrier run as a cluster.

#include "gpu/arch/cluster.cuh"

namespace splash::gpu::arch {

inline void sync_blocks(uint32_t* /*barrier*/, bool /*is_first*/, int /*count*/) {
  cluster_sync();
}

inline bool comes_last(uint32_t* arrived, int count) {
  __syncthreads();
  const bool is_last = threadIdx.x == 0 && ++*arrived == static_cast<uint32_t>(count);
  return __syncthreads_or(is_last ? 1 : 0) != 0;
}

}  // namespace splash::gpu::arch
