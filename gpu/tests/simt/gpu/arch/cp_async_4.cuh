#pragma once
// gpu/arch/cp_async_4.cuh on the CPU.

namespace splash::gpu::arch {

inline void cp_async_4(void* shared, const void* global) {
  simt::start_copy(shared, global, 4, false);
}

}  // namespace splash::gpu::arch
