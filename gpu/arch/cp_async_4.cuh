#pragma once
// A 4-byte asynchronous copy from global to shared memory that bypasses the registers (sm_80), for data that
// is not 16-byte aligned. Groups and mbarriers work as in cp_async.cuh.

#include "gpu/arch/shared_pointer.cuh"

namespace splash::gpu::arch {

__device__ __forceinline__ void cp_async_4(void* shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(shared)), "l"(global)
               : "memory");
}

}  // namespace splash::gpu::arch
