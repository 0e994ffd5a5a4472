#pragma once
// gpu/arch/maximum.cuh on the CPU.

namespace splash::gpu::arch {

inline float larger_or_nan(float a, float b) {
  return std::isnan(a) || a > b ? a : b;
}

}  // namespace splash::gpu::arch
