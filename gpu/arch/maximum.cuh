#pragma once
// The larger of two floats, or NaN if either is NaN (sm_80). fmaxf would return the other operand instead.

namespace splash::gpu::arch {

__device__ __forceinline__ float larger_or_nan(float a, float b) {
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}

}  // namespace splash::gpu::arch
