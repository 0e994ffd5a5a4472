#pragma once
// L2 eviction policies for TMA copies (sm_90).

#include <cuda.h>

#include "gpu/arch/shared_pointer.cuh"

namespace splash::gpu::arch {

// For data that is used once: L2 evicts it before other data.
__device__ __forceinline__ uint64_t evict_first() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ uint64_t evict_normal() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// tensor_load and tensor_store of bulk_copy.cuh with a policy.
__device__ __forceinline__ void tensor_load(void* shared, const CUtensorMap* map, uint64_t* barrier,
                                            uint64_t policy, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void tensor_store(const CUtensorMap* map, const void* shared, uint64_t policy,
                                             int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group.L2::cache_hint [%0, {%2, %3, %4}], [%1], "
      "%5;" ::"l"(map),
      "r"(shared_address(shared)), "r"(x), "r"(y), "r"(z), "l"(policy)
      : "memory");
}

}  // namespace splash::gpu::arch
