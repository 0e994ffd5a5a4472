#pragma once
// Addresses of shared memory as PTX wants them. The dynamic array must stay plainly shared to the compiler:
// declare it `extern __shared__ __align__(1024)`, for an address rounded up by hand turns every later access
// generic.

#include <cstdint>

namespace splash::gpu::arch {

__device__ __forceinline__ uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

}  // namespace splash::gpu::arch
