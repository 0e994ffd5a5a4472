#pragma once
// Shared-memory addresses as PTX takes them. Declare the dynamic array `extern __shared__ __align__(1024)`,
// so that the compiler knows it is shared memory. If code rounds its address up instead, every later access
// becomes generic.

#include <cstdint>

namespace splash::gpu::arch {

__device__ __forceinline__ uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// Stores two words at such an address, which is a multiple of 8.
__device__ __forceinline__ void store_shared(uint32_t address, uint32_t a, uint32_t b) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b) : "memory");
}

}  // namespace splash::gpu::arch
