#pragma once
// gpu/arch/cp_async.cuh on the CPU.

namespace splash::gpu::arch {

inline void cp_async_16(void* shared, const void* global, bool valid = true) {
  simt::start_copy(shared, global, 16, !valid);
}
inline void cp_async_commit() {
  simt::commit_copies();
}
template <int kPending>
void cp_async_wait() {
  simt::land_copies(kPending);
}

}  // namespace splash::gpu::arch
