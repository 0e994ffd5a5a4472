#pragma once
// gpu/arch/mbarrier.cuh on the CPU.

#include "gpu/arch/ring_position.cuh"

namespace splash::gpu::arch {

inline void mbarrier_init(uint64_t* barrier, int arrivals) {
  simt::init_barrier(barrier, arrivals);
}
inline void mbarrier_init_fence() {}
inline void mbarrier_arrive(uint64_t* barrier) {
  simt::arrive(barrier, 0);
}
inline uint64_t mbarrier_arrive_pending(uint64_t* barrier) {
  return static_cast<uint64_t>(simt::arrive(barrier, 0));
}
inline bool mbarrier_was_last(uint64_t state) {
  return state == 1;
}
inline void mbarrier_arrive_expect(uint64_t* barrier, uint32_t bytes) {
  simt::arrive(barrier, bytes);
}
inline void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
  while (!simt::has_passed(barrier, parity)) simt::pause();
}

}  // namespace splash::gpu::arch
