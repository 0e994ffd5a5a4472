#pragma once
// Bytes of float8 (e4m3fn: exponent bias 7, no infinity, NaN 0x7F and 0xFF) as float16, exactly: NaN stays
// NaN.

#include <cstdint>

#include <cuda_fp16.h>

// Whether there is an instruction: on sm_90, and on sm_89 since CUDA 12.1.
#if defined(__CUDA_ARCH__) && \
    (__CUDA_ARCH__ >= 900 ||  \
     (__CUDA_ARCH__ == 890 && __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1201))
#define SPLASH_CONVERTS_E4M3 1
#else
#define SPLASH_CONVERTS_E4M3 0
#endif

namespace splash::gpu::arch {

// The four bytes of a register in two registers, the first in a low half.
__device__ __forceinline__ uint2 halves_of_e4m3(uint32_t bytes) {
#if SPLASH_CONVERTS_E4M3
  uint2 halves;
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, low;\ncvt.rn.f16x2.e4m3x2 %1, high;\n}"
      : "=r"(halves.x), "=r"(halves.y)
      : "r"(bytes));
  return halves;
#else
  // A byte's exponent and mantissa in the place of float16's, whose bias is 15: what is 2^8 too small, for
  // subnormal numbers, too.
  const auto halves = [](uint32_t high_bytes) {
    constexpr uint32_t kSign = 0x80008000u, kRest = 0x3F803F80u, kCarry = 0x00800080u, kTop = 0x40004000u;
    const uint32_t rest = high_bytes >> 1 & kRest;
    const uint32_t nan = (rest + kCarry) & kTop;  // with it the exponent's bits are all 1
    const uint32_t small = (high_bytes & kSign) | rest | nan, factor = 0x5C005C00u;  // 2^8, twice
    const __half2 pair =
        __hmul2(*reinterpret_cast<const __half2*>(&small), *reinterpret_cast<const __half2*>(&factor));
    return *reinterpret_cast<const uint32_t*>(&pair);
  };
  return {halves(__byte_perm(bytes, 0, 0x1404)), halves(__byte_perm(bytes, 0, 0x3424))};
#endif
}

}  // namespace splash::gpu::arch
