#pragma once
// Addresses of shared memory as PTX wants them. The dynamic array must stay plainly shared to the compiler:
// declare it `extern __shared__ __align__(1024)`, for an address rounded up by hand turns every later access
// generic.

#include <cstdint>

namespace splash::gpu::arch {

__device__ __forceinline__ uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// Two words to such an address, a multiple of 8.
__device__ __forceinline__ void store_shared(uint32_t address, uint32_t a, uint32_t b) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b) : "memory");
}

}  // namespace splash::gpu::arch
