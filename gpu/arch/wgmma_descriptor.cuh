#pragma once
// Descriptors that tell wgmma where an operand lies in shared memory (sm_90a). Tiles are swizzled as TMA
// writes them and start at multiples of 1024 bytes. Rows are as long as the swizzle is wide (128 bytes: 64
// elements of 16 bits). A wider matrix is stored as consecutive panels, each of that width.

#include "gpu/arch/shared_pointer.cuh"
#include "gpu/arch/swizzle.h"

namespace splash::gpu::arch {

enum class Major { k = 0, mn = 1 };  // the dimension that is contiguous in memory

namespace detail {
__device__ __forceinline__ uint64_t descriptor(const void* tile, Swizzle swizzle, int leading_bytes,
                                               int stride_bytes) {
  const uint64_t layout = swizzle == Swizzle::bytes128 ? 1 : swizzle == Swizzle::bytes64 ? 2 : 3;
  const auto field = [](uint32_t bytes) { return static_cast<uint64_t>((bytes & 0x3FFFF) >> 4); };
  return field(shared_address(tile)) | field(leading_bytes) << 16 | field(stride_bytes) << 32 | layout << 62;
}
}  // namespace detail

// For Q or K of Q K^T, stored [row, dim]: rows are M or N, and k runs along a row. advance(descriptor, 32)
// gives the next k step of the same panel. Row 64 starts 64 * width bytes further.
template <Swizzle kSwizzle = Swizzle::bytes128>
__device__ __forceinline__ uint64_t k_major_descriptor(const void* tile) {
  return detail::descriptor(tile, kSwizzle, 16, 8 * static_cast<int>(kSwizzle));  // groups of 8 rows
}

// For V of P V, stored [key, dim]: k runs over the rows and N along a row. Panels are `panel_bytes` apart
// (keys per tile * width). advance(descriptor, 16 * width) gives the next 16 keys.
template <Swizzle kSwizzle = Swizzle::bytes128>
__device__ __forceinline__ uint64_t mn_major_descriptor(const void* tile, int panel_bytes) {
  return detail::descriptor(tile, kSwizzle, panel_bytes, 8 * static_cast<int>(kSwizzle));
}

// The same descriptor, known to the compiler to be equal in all lanes of the warp. The compiler then advances
// it in uniform registers, where wgmma needs it, and not in each lane's registers.
__device__ __forceinline__ uint64_t uniform(uint64_t descriptor) {
  const uint32_t low = __shfl_sync(0xFFFFFFFFu, static_cast<uint32_t>(descriptor), 0);
  return descriptor >> 32 << 32 | low;
}

__device__ __forceinline__ uint64_t advance(uint64_t descriptor, int bytes) {
  return descriptor + static_cast<uint64_t>(bytes >> 4);
}

}  // namespace splash::gpu::arch
