#pragma once
// TMA multicast within a cluster (sm_90): one read of L2 fills the same shared-memory address in several
// blocks.
//
//   // each of the two blocks loads one half of the tile for both; each `full` expects both halves' bytes
//   tensor_load_multicast(tile + half, &map, &full, 0b11, evict_first(), column, row, head);
//   mbarrier_arrive_at(&empty, rank);  // each block's consumers, for both ranks: the tile may be overwritten

#include "gpu/arch/cluster.cuh"
#include "gpu/arch/l2_policy.cuh"

namespace splash::gpu::arch {

// Lands at `shared` in each block whose rank is a bit of `ranks`, and counts its bytes on that block's
// `barrier`.
__device__ __forceinline__ void tensor_load_multicast(void* shared, const CUtensorMap* map, uint64_t* barrier,
                                                      int ranks, uint64_t policy, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      ".L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6, %7;" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "h"(static_cast<uint16_t>(ranks)),
      "l"(policy)
      : "memory");
}

// Arrives on the same barrier of block `rank`. That block must not have exited.
__device__ __forceinline__ void mbarrier_arrive_at(uint64_t* barrier, int rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(remote_address(barrier, rank))
               : "memory");
}

}  // namespace splash::gpu::arch
