#pragma once
// Reads the lane's number afresh at each call. The compiler would otherwise compute it once, at the kernel's
// start, and keep it in a register or spill it.

namespace splash::gpu::arch {

__device__ __forceinline__ int lane_id() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

}  // namespace splash::gpu::arch
