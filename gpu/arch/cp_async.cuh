#pragma once
// 16-byte asynchronous copies from global to shared memory that bypass the registers (sm_80).

#include "gpu/arch/shared_pointer.cuh"

namespace splash::gpu::arch {

// Bypasses L1. If not valid, it writes zeros and reads nothing; the address must still be in global memory.
__device__ __forceinline__ void cp_async_16(void* shared, const void* global, bool valid = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
               "r"(valid ? 16 : 0)
               : "memory");
}

__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most kPending of this thread's groups are pending. To read what other threads copied, put a
// barrier after it.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Arrives once on `barrier` when all copies that this thread has issued so far have landed. The barrier's
// expected count must include this arrival.
__device__ __forceinline__ void cp_async_arrive(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

}  // namespace splash::gpu::arch
