#pragma once
// Asks for memory before it is needed.

namespace splash::gpu::arch {

// Brings kBytes from an address into the L2. Nothing waits for them. (One bulk prefetch in place of these
// takes a warp far longer: its lanes issue it one after another.)
template <int kBytes>
__device__ __forceinline__ void prefetch(const void* address) {
#ifdef __CUDA_ARCH__
#pragma unroll
  for (int at = 0; at < kBytes; at += 128)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const char*>(address) + at));
#else
  static_cast<void>(address);
#endif
}

}  // namespace splash::gpu::arch
