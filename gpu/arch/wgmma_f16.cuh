#pragma once
// Tensor products of a warpgroup (sm_90a) with float16 accumulators. A register holds two of them, so d takes
// half the registers that it takes in wgmma.cuh, in the same order. Warp w holds 16 rows. In its lane l,
// d[2j + half] holds, low half first, columns 8 j + 2 (l % 4) + {0, 1} of row 16 w + l / 4 + 8 half. Operand
// a comes from registers. Its layout, fences, commits and waits are those of wgmma.cuh.
//
// Each step over 16 columns of a rounds the running sum once, to the nearest float16. The relative error of
// that rounding is at most kHalfStepError (gpu_arch_tests checks it).

#include "gpu/arch/wgmma.cuh"

namespace splash::gpu::arch {

inline constexpr float kHalfStepError = 0x1p-11f;

#define SPLASH_WGMMA_F16(N, a0, a1, a2, a3, b_, acc_, ...)                                             \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #acc_ ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N \
               "k16.f16.f16.f16 {" __VA_ARGS__ "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_    \
               ", p, 1, 1, 0;\n}"                                                                      \
               : SPLASH_WGMMA_F16_D##N                                                                 \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)))
// clang-format off
#define SPLASH_WGMMA_F16_D8(i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3]), "+r"(d[i + 4]), \
  "+r"(d[i + 5]), "+r"(d[i + 6]), "+r"(d[i + 7])
#define SPLASH_WGMMA_F16_D64 SPLASH_WGMMA_F16_D8(0), SPLASH_WGMMA_F16_D8(8)
#define SPLASH_WGMMA_F16_D128 SPLASH_WGMMA_F16_D64, SPLASH_WGMMA_F16_D8(16), SPLASH_WGMMA_F16_D8(24)
// clang-format on

__device__ __forceinline__ void wgmma_f16(uint32_t (&d)[16], const uint32_t (&a)[4], uint64_t b,
                                          bool accumulate) {
  SPLASH_WGMMA_F16(64, 16, 17, 18, 19, 20, 21, SPLASH_WGMMA_NAMES_32);
}
__device__ __forceinline__ void wgmma_f16(uint32_t (&d)[32], const uint32_t (&a)[4], uint64_t b,
                                          bool accumulate) {
  SPLASH_WGMMA_F16(128, 32, 33, 34, 35, 36, 37, SPLASH_WGMMA_NAMES_64);
}

#undef SPLASH_WGMMA_F16
#undef SPLASH_WGMMA_F16_D8
#undef SPLASH_WGMMA_F16_D64
#undef SPLASH_WGMMA_F16_D128

template <int kRegisters>
__device__ __forceinline__ void wgmma_hold(uint32_t (&d)[kRegisters]) {
#pragma unroll
  for (int i = 0; i < kRegisters; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

}  // namespace splash::gpu::arch
