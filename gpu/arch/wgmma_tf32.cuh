#pragma once
// wgmma of tf32 whose a [64, 8] comes from registers (sm_90a): each warp's 16 rows, laid out as in mma.cuh.
// wgmma reads MN-major operands from shared memory only if they have 16 bits. This variant therefore serves a
// float32 operand that is stored MN-major: threads read it from shared memory in the order they need.

#include "gpu/arch/wgmma.cuh"

namespace splash::gpu::arch {

// d [64, 256] (+)= a [64, 8] b [8, 256]. a holds the bits of floats; the low 13 are dropped. b is K-major.
__device__ __forceinline__ void wgmma_tf32(float (&d)[128], const uint32_t (&a)[4], uint64_t b,
                                           bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %133, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k8.f32.tf32.tf32 {" SPLASH_WGMMA_NAMES_256
      "}, {%128, %129, %130, %131}, %132, p, 1, 1;\n}"
      : SPLASH_WGMMA_D_256
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)));
}

}  // namespace splash::gpu::arch
