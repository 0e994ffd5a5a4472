#pragma once
// Tensor products of a warpgroup (sm_90a): d [64, N] (+)= a [64, k] b [k, N] with float32 accumulators, where
// k is 32 bytes of elements. Warp w of the warpgroup holds 16 rows. In its lane l, d[4j + e] is the element
// (16 w + l/4 + 8 (e/2), 8 j + 2 (l%4) + e%2).
//
//   float d[64];       // N = 128; q [64, 64] and keys [128, 64] are tiles of 128-byte rows
//   wgmma_fence();     // where other code wrote d
//   for (int k = 0; k < 4; ++k)
//     wgmma<__nv_bfloat16>(d, advance(q_descriptor, 32 * k), advance(key_descriptor, 32 * k), k > 0);
//   wgmma_commit();
//   wgmma_wait<0>();   // only now touch d, q or keys
//   wgmma_hold(d);
//
// Elements: __half, __nv_bfloat16, float (tf32: the low 13 bits are dropped) and __nv_fp8_e4m3; only 16-bit
// operands may be MN-major. If code reads or copies d while products are pending, ptxas serialises them
// (warning C7510).

#include <cstdint>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "gpu/arch/wgmma_descriptor.cuh"

struct __nv_fp8_e4m3;

namespace splash::gpu::arch {

// Call it before the first product after other code has written the registers that the product uses.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most kPending committed groups are pending.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving uses of d across this point. Call it after the wait for the products that
// write d.
template <int kRegisters>
__device__ __forceinline__ void wgmma_hold(float (&d)[kRegisters]) {
#pragma unroll
  for (int i = 0; i < kRegisters; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// The registers of d, as inline assembly names them and passes them, for each N.
// clang-format off
#define SPLASH_WGMMA_NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7"
#define SPLASH_WGMMA_NAMES_32 \
  SPLASH_WGMMA_NAMES_16 ", " \
  "%8, %9, %10, %11, %12, %13, %14, %15"
#define SPLASH_WGMMA_NAMES_64 \
  SPLASH_WGMMA_NAMES_32 ", " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SPLASH_WGMMA_NAMES_96 \
  SPLASH_WGMMA_NAMES_64 ", " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define SPLASH_WGMMA_NAMES_128 \
  SPLASH_WGMMA_NAMES_96 ", " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SPLASH_WGMMA_NAMES_192 \
  SPLASH_WGMMA_NAMES_128 ", " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, " \
  "%84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define SPLASH_WGMMA_NAMES_256 \
  SPLASH_WGMMA_NAMES_192 ", " \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, " \
  "%116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define SPLASH_WGMMA_D8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
  "+f"(d[i + 6]), "+f"(d[i + 7])
#define SPLASH_WGMMA_D_16 SPLASH_WGMMA_D8(0)
#define SPLASH_WGMMA_D_32 SPLASH_WGMMA_D_16, SPLASH_WGMMA_D8(8)
#define SPLASH_WGMMA_D_64 SPLASH_WGMMA_D_32, SPLASH_WGMMA_D8(16), SPLASH_WGMMA_D8(24)
#define SPLASH_WGMMA_D_96 SPLASH_WGMMA_D_64, SPLASH_WGMMA_D8(32), SPLASH_WGMMA_D8(40)
#define SPLASH_WGMMA_D_128 SPLASH_WGMMA_D_96, SPLASH_WGMMA_D8(48), SPLASH_WGMMA_D8(56)
#define SPLASH_WGMMA_D_192 \
  SPLASH_WGMMA_D_128, SPLASH_WGMMA_D8(64), SPLASH_WGMMA_D8(72), SPLASH_WGMMA_D8(80), \
  SPLASH_WGMMA_D8(88)
#define SPLASH_WGMMA_D_256 \
  SPLASH_WGMMA_D_192, SPLASH_WGMMA_D8(96), SPLASH_WGMMA_D8(104), SPLASH_WGMMA_D8(112), \
  SPLASH_WGMMA_D8(120)
// clang-format on

// One instruction. p0, p1, ... are the numbers of the assembly operands after d. TRANSPOSES names the
// immediates that say which of a and b is MN-major.
#define SPLASH_WGMMA_SS(N, K_TYPES, p0, p1, p2, TRANSPOSES, ...)                          \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p2                                   \
               ", 0;\n"                                                                   \
               "wgmma.mma_async.sync.aligned.m64n" #N K_TYPES " {" SPLASH_WGMMA_NAMES_##N \
               "}, %" #p0 ", %" #p1 ", p, 1, 1" TRANSPOSES ";\n}"                         \
               : SPLASH_WGMMA_D_##N                                                       \
               : "l"(a), "l"(b), "r"(static_cast<int>(accumulate))__VA_ARGS__)
#define SPLASH_WGMMA_RS(N, K_TYPES, p0, p1, p2, p3, p4, p5, TRANSPOSES, ...)                      \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p5                                           \
               ", 0;\n"                                                                           \
               "wgmma.mma_async.sync.aligned.m64n" #N K_TYPES " {" SPLASH_WGMMA_NAMES_##N         \
               "}, {%" #p0 ", %" #p1 ", %" #p2 ", %" #p3 "}, %" #p4 ", p, 1, 1" TRANSPOSES ";\n}" \
               : SPLASH_WGMMA_D_##N                                                               \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                              \
                 "r"(static_cast<int>(accumulate))__VA_ARGS__)

// Two overloads per N: a comes from shared memory, or from registers (each warp's 16 rows as mma.cuh lays
// them out). The length of d selects N. p0 to p6 number the assembly operands after the last register of d.
#define SPLASH_WGMMA_DEFINE(N, p0, p1, p2, p3, p4, p5, p6)                                               \
  template <class Element, Major kMajorB = Major::k, Major kMajorA = Major::k>                           \
  __device__ __forceinline__ void wgmma(float(&d)[N / 2], uint64_t a, uint64_t b, bool accumulate) {     \
    if constexpr (std::is_same_v<Element, __nv_bfloat16>) {                                              \
      SPLASH_WGMMA_SS(N, "k16.f32.bf16.bf16", p0, p1, p2, ", %" #p3 ", %" #p4, SPLASH_WGMMA_MAJORS);     \
    } else if constexpr (std::is_same_v<Element, __half>) {                                              \
      SPLASH_WGMMA_SS(N, "k16.f32.f16.f16", p0, p1, p2, ", %" #p3 ", %" #p4, SPLASH_WGMMA_MAJORS);       \
    } else {                                                                                             \
      static_assert(kMajorA == Major::k && kMajorB == Major::k, "only 16-bit operands may be MN-major"); \
      if constexpr (std::is_same_v<Element, float>) {                                                    \
        SPLASH_WGMMA_SS(N, "k8.f32.tf32.tf32", p0, p1, p2, "");                                          \
      } else {                                                                                           \
        static_assert(std::is_same_v<Element, __nv_fp8_e4m3>);                                           \
        SPLASH_WGMMA_SS(N, "k32.f32.e4m3.e4m3", p0, p1, p2, "");                                         \
      }                                                                                                  \
    }                                                                                                    \
  }                                                                                                      \
  template <class Element, Major kMajorB = Major::k>                                                     \
  __device__ __forceinline__ void wgmma(float(&d)[N / 2], const uint32_t(&a)[4], uint64_t b,             \
                                        bool accumulate) {                                               \
    static_assert(std::is_same_v<Element, __nv_bfloat16> || std::is_same_v<Element, __half>);            \
    if constexpr (std::is_same_v<Element, __nv_bfloat16>) {                                              \
      SPLASH_WGMMA_RS(N, "k16.f32.bf16.bf16", p0, p1, p2, p3, p4, p5, ", %" #p6, SPLASH_WGMMA_MAJOR_B);  \
    } else {                                                                                             \
      SPLASH_WGMMA_RS(N, "k16.f32.f16.f16", p0, p1, p2, p3, p4, p5, ", %" #p6, SPLASH_WGMMA_MAJOR_B);    \
    }                                                                                                    \
  }
#define SPLASH_WGMMA_MAJORS , "n"(static_cast<int>(kMajorA)), "n"(static_cast<int>(kMajorB))
#define SPLASH_WGMMA_MAJOR_B , "n"(static_cast<int>(kMajorB))

SPLASH_WGMMA_DEFINE(16, 8, 9, 10, 11, 12, 13, 14)
SPLASH_WGMMA_DEFINE(32, 16, 17, 18, 19, 20, 21, 22)
SPLASH_WGMMA_DEFINE(64, 32, 33, 34, 35, 36, 37, 38)
SPLASH_WGMMA_DEFINE(96, 48, 49, 50, 51, 52, 53, 54)
SPLASH_WGMMA_DEFINE(128, 64, 65, 66, 67, 68, 69, 70)
SPLASH_WGMMA_DEFINE(192, 96, 97, 98, 99, 100, 101, 102)
SPLASH_WGMMA_DEFINE(256, 128, 129, 130, 131, 132, 133, 134)

#undef SPLASH_WGMMA_DEFINE
#undef SPLASH_WGMMA_MAJORS
#undef SPLASH_WGMMA_MAJOR_B
#undef SPLASH_WGMMA_SS
#undef SPLASH_WGMMA_RS

}  // namespace splash::gpu::arch
