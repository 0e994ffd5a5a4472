#pragma once
// What threads of a block do in parts: named barriers, and registers moved between warpgroups.

namespace splash::gpu::arch {

// Barriers 1 to 15 (0 is __syncthreads'); `threads`, a multiple of 32, counts who syncs and who only arrives.
// Within one role all is well. Between roles compute-sanitizer 2025.3 errs: racecheck sees races wherever
// they order accesses, synccheck divergence where both sides sync (not where one arrives). mbarriers are
// clean in both.
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Registers a thread, a multiple of 8 from 24 to 240, by all warps of a warpgroup (sm_90a). Works only in a
// kernel with __launch_bounds__(threads, 1) whose roles are the branches of a single if/else.
template <int kRegisters>
__device__ __forceinline__ void give_registers_back() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace splash::gpu::arch
