#pragma once
// gpu/arch/lane.cuh on the CPU.

namespace splash::gpu::arch {

inline int lane_id() {
  return simt::lane();
}

}  // namespace splash::gpu::arch
