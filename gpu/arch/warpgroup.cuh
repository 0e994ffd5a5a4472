#pragma once
// For a block whose warps take roles, such as producer and consumer: named barriers for some of its threads,
// and registers moved between warpgroups.

namespace splash::gpu::arch {

// Barriers 1 to 15 (0 belongs to __syncthreads). `threads`, a multiple of 32, counts both the threads that
// sync and those that only arrive. compute-sanitizer 2025.3 gives false reports for named barriers between
// roles, not within one: racecheck reports races wherever such a barrier orders accesses, and synccheck
// reports divergence if both sides sync (not if one only arrives). mbarriers pass both tools.
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Sets the registers per thread to kRegisters, a multiple of 8 from 24 to 256. All warps of a warpgroup call
// it (sm_90a). It works only in a kernel with __launch_bounds__(threads, 1) whose roles are the branches of a
// single if/else.
template <int kRegisters>
__device__ __forceinline__ void give_registers_back() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace splash::gpu::arch
