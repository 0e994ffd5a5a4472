#pragma once
// Loads, stores and arithmetic on eight 16-bit elements (float16 or bfloat16) at once. load8 and store8 take
// 16-byte aligned addresses in global or shared memory.

#include <type_traits>

#include <cuda_fp16.h>

#include "gpu/arch/mma.cuh"

namespace splash::gpu::entmax {

template <class T>
__device__ __forceinline__ uint4 load8(const T* from) {
  return *reinterpret_cast<const uint4*>(from);
}
template <class T>
__device__ __forceinline__ void store8(T* to, const uint4& packed) {
  *reinterpret_cast<uint4*>(to) = packed;
}

template <class T>
__device__ __forceinline__ float2 unpacked(uint32_t pair) {
  if constexpr (std::is_same_v<T, __half>) {
    return __half22float2(*reinterpret_cast<const __half2*>(&pair));
  } else {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u)};
  }
}

template <class T>
__device__ __forceinline__ void add_scaled(float (&sums)[8], float factor, const uint4& packed) {
  const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = unpacked<T>(words[i]);
    sums[2 * i] = fmaf(factor, pair.x, sums[2 * i]);
    sums[2 * i + 1] = fmaf(factor, pair.y, sums[2 * i + 1]);
  }
}

template <class T>
__device__ __forceinline__ void unpack8(const uint4& packed, float (&x)[8]) {
  const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = unpacked<T>(words[i]);
    x[2 * i] = pair.x;
    x[2 * i + 1] = pair.y;
  }
}
// The same as add_scaled where factor is not 0; where it is, x may be anything. Predicated, without a branch.
__device__ __forceinline__ void add_scaled_unless_0(float (&sums)[8], float factor, const float (&x)[8]) {
#ifdef __CUDA_ARCH__
  asm("{\n.reg .pred keeps;\nsetp.neu.f32 keeps, %8, 0f00000000;\n"
      "@keeps fma.rn.f32 %0, %8, %9, %0;\n@keeps fma.rn.f32 %1, %8, %10, %1;\n"
      "@keeps fma.rn.f32 %2, %8, %11, %2;\n@keeps fma.rn.f32 %3, %8, %12, %3;\n"
      "@keeps fma.rn.f32 %4, %8, %13, %4;\n@keeps fma.rn.f32 %5, %8, %14, %5;\n"
      "@keeps fma.rn.f32 %6, %8, %15, %6;\n@keeps fma.rn.f32 %7, %8, %16, %7;\n}"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]), "+f"(sums[5]),
        "+f"(sums[6]), "+f"(sums[7])
      : "f"(factor), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "f"(x[4]), "f"(x[5]), "f"(x[6]), "f"(x[7]));
#else
  for (int i = 0; i < 8 && factor != 0; ++i) sums[i] = fmaf(factor, x[i], sums[i]);
#endif
}

template <class T>
__device__ __forceinline__ float dot8(const uint4& a, const uint4& b) {
  const uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 u = unpacked<T>(x[i]), v = unpacked<T>(y[i]);
    sum = fmaf(u.x, v.x, fmaf(u.y, v.y, sum));
  }
  return sum;
}

template <class T>
__device__ __forceinline__ uint4 rounded(const float (&x)[8]) {
  return {arch::pack_pair<T>(x[0], x[1]), arch::pack_pair<T>(x[2], x[3]), arch::pack_pair<T>(x[4], x[5]),
          arch::pack_pair<T>(x[6], x[7])};
}

}  // namespace splash::gpu::entmax
