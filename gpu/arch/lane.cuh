#pragma once
// Read the lane's and the thread's number afresh at each call. The compiler would otherwise compute them
// once, at the kernel's start, and keep them in registers or spill them.

namespace splash::gpu::arch {

__device__ __forceinline__ int lane_id() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}
__device__ __forceinline__ int thread_index() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

}  // namespace splash::gpu::arch
