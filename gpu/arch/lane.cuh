#pragma once
// The lane, read anew: what the compiler would otherwise keep in a register, or spill, from the kernel's
// start on.

namespace splash::gpu::arch {

__device__ __forceinline__ int lane_id() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

}  // namespace splash::gpu::arch
