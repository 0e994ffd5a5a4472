#pragma once
// A lane's elements of a row of v or out, loaded and stored at once.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace splash::gpu::entmax::portable {

template <class T, int kElements>
struct alignas(kElements * sizeof(T) < 16 ? kElements * sizeof(T) : 16) Vector {
  T elements[kElements];

  static __device__ __forceinline__ Vector load(const T* from) {
    return *reinterpret_cast<const Vector*>(from);
  }
  // Rounds to nearest even.
  static __device__ __forceinline__ void store(T* to, const float (&x)[kElements]) {
    Vector rounded;
#pragma unroll
    for (int i = 0; i < kElements; ++i) rounded.elements[i] = static_cast<T>(x[i]);
    *reinterpret_cast<Vector*>(to) = rounded;
  }
  __device__ __forceinline__ void add_to(float (&sums)[kElements], float factor) const {
#pragma unroll
    for (int i = 0; i < kElements; ++i) sums[i] = fmaf(factor, static_cast<float>(elements[i]), sums[i]);
  }
};

}  // namespace splash::gpu::entmax::portable
