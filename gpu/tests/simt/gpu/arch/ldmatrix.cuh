#pragma once
// gpu/arch/ldmatrix.cuh on the CPU.

namespace splash::gpu::arch {

inline void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) simt::fail("ldmatrix of a row that is not aligned");
  const auto rows = simt::exchange(simt::Scope::warp, "ldmatrix", row);
  const int lane = simt::lane();
  for (int i = 0; i < 4; ++i)
    std::memcpy(&r[i], static_cast<const char*>(rows[8 * i + lane / 4]) + lane % 4 * 4, 4);
}

}  // namespace splash::gpu::arch
