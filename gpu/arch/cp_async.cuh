#pragma once
// 16-byte copies from global to shared memory that pass by the registers (sm_80).

#include "gpu/arch/shared_pointer.cuh"

namespace splash::gpu::arch {

// Past L1. Where not valid, writes zeros and reads nothing (the address must still be one of global memory).
__device__ __forceinline__ void cp_async_16(void* shared, const void* global, bool valid = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
               "r"(valid ? 16 : 0)
               : "memory");
}

__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Until at most kPending of this thread's groups are under way. Other threads' copies need a barrier after
// it.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Lets `barrier` receive one arrival of this thread once its copies so far have landed; the barrier's count
// includes it.
__device__ __forceinline__ void cp_async_arrive(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

}  // namespace splash::gpu::arch
