#pragma once
// gpu/arch/lane.cuh on the CPU.

namespace splash::gpu::arch {

inline int lane_id() {
  return simt::lane();
}
inline int thread_index() {
  return static_cast<int>(threadIdx.x);
}

}  // namespace splash::gpu::arch
