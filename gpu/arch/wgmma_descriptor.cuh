#pragma once
// Where wgmma finds an operand in shared memory (sm_90a). Tiles are swizzled as TMA writes them
// and start at multiples of 1024 bytes; rows are as long as the swizzle is wide (128 bytes: 64 elements of 16
// bits). Wider matrices lie as panels of such columns behind one another.

#include "gpu/arch/shared_pointer.cuh"
#include "gpu/arch/swizzle.h"

namespace splash::gpu::arch {

enum class Major { k = 0, mn = 1 };  // along which dimension neighbours in memory lie

namespace detail {
__device__ __forceinline__ uint64_t descriptor(const void* tile, Swizzle swizzle, int leading_bytes,
                                               int stride_bytes) {
  const uint64_t layout = swizzle == Swizzle::bytes128 ? 1 : swizzle == Swizzle::bytes64 ? 2 : 3;
  const auto field = [](uint32_t bytes) { return static_cast<uint64_t>((bytes & 0x3FFFF) >> 4); };
  return field(shared_address(tile)) | field(leading_bytes) << 16 | field(stride_bytes) << 32 | layout << 62;
}
}  // namespace detail

// Q or K of Q K^T, stored [row, dim]: the rows are M or N, k runs along a row. The next k step of the same
// panel is advance(descriptor, 32); rows 64 and on start 64 * width bytes further.
template <Swizzle kSwizzle = Swizzle::bytes128>
__device__ __forceinline__ uint64_t k_major_descriptor(const void* tile) {
  return detail::descriptor(tile, kSwizzle, 16, 8 * static_cast<int>(kSwizzle));  // groups of 8 rows
}

// V of P V, stored [key, dim]: k runs over the rows, N along them, panel after panel `panel_bytes` apart
// (keys a tile * width). The next 16 keys are advance(descriptor, 16 * width).
template <Swizzle kSwizzle = Swizzle::bytes128>
__device__ __forceinline__ uint64_t mn_major_descriptor(const void* tile, int panel_bytes) {
  return detail::descriptor(tile, kSwizzle, panel_bytes, 8 * static_cast<int>(kSwizzle));
}

// The same descriptor, which the compiler then knows to be the warp's: steps from it are taken in uniform
// registers, where wgmma needs them, and not in each lane's.
__device__ __forceinline__ uint64_t uniform(uint64_t descriptor) {
  const uint32_t low = __shfl_sync(0xFFFFFFFFu, static_cast<uint32_t>(descriptor), 0);
  return descriptor >> 32 << 32 | low;
}

__device__ __forceinline__ uint64_t advance(uint64_t descriptor, int bytes) {
  return descriptor + static_cast<uint64_t>(bytes >> 4);
}

}  // namespace splash::gpu::arch
