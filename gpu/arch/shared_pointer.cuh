#pragma once
// Addresses of shared memory as PTX wants them. The dynamic array must stay plainly shared to the compiler:
// declare it `extern __shared__ __align__(1024)`, for an address rounded up by hand turns every later access
// generic.

#include <cstdint>

namespace splash::gpu::arch {

__device__ __forceinline__ uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// Stores to such an address plus kOffset, which costs no instruction. 16 bytes: to a multiple of 16.
template <int kOffset>
__device__ __forceinline__ void store_shared(uint32_t address, uint32_t word) {
  asm volatile("st.shared.b32 [%0 + %2], %1;" ::"r"(address), "r"(word), "n"(kOffset) : "memory");
}
template <int kOffset>
__device__ __forceinline__ void store_shared(uint32_t address, uint32_t a, uint32_t b, uint32_t c,
                                             uint32_t d) {
  asm volatile("st.shared.v4.b32 [%0 + %5], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d),
               "n"(kOffset)
               : "memory");
}

}  // namespace splash::gpu::arch
