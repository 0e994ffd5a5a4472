#pragma once
// The larger of two floats, NaN where one is (sm_80). fmaxf takes the other one then.

namespace splash::gpu::arch {

__device__ __forceinline__ float larger_or_nan(float a, float b) {
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}

}  // namespace splash::gpu::arch
