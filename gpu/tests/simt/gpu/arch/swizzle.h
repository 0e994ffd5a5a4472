#pragma once
// gpu/arch/swizzle.h on the CPU: rows are not permuted, as bulk_copy.cuh here writes them.

namespace splash::gpu::arch {

enum class Swizzle { bytes32 = 32, bytes64 = 64, bytes128 = 128 };

constexpr int swizzled_offset(Swizzle swizzle, int row, int byte) {
  return row * static_cast<int>(swizzle) + byte;
}

}  // namespace splash::gpu::arch
