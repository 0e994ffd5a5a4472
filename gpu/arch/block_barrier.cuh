#pragma once
// Where blocks meet that form no cluster: a barrier, or the last of them goes on alone.

#include <cstdint>

namespace splash::gpu::arch {

// All threads of `count` blocks call it; one of the blocks is the first. Afterwards each thread sees what any
// of them wrote before. The blocks must run together (a cooperative launch), or those that run wait forever.
// The word's lower 31 bits must be 0, and are again afterwards; its highest changes.
__device__ __forceinline__ void sync_blocks(uint32_t* barrier, bool is_first, int count) {
  constexpr uint32_t kHighest = 0x80000000u;
  __syncthreads();
  if (threadIdx.x == 0) {
    const uint32_t arrival = is_first ? kHighest - static_cast<uint32_t>(count - 1) : 1;
    uint32_t before, now;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(barrier), "r"(arrival)
                 : "memory");
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(barrier) : "memory");
    } while (((before ^ now) & kHighest) == 0);
  }
  __syncthreads();
}

// All threads of `count` blocks call it, once. True in the block that comes last, which sees what the others
// wrote before. The word must be 0.
__device__ __forceinline__ bool comes_last(uint32_t* arrived, int count) {
  __syncthreads();
  uint32_t before = 0;
  if (threadIdx.x == 0)
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(before) : "l"(arrived) : "memory");
  return __syncthreads_or(threadIdx.x == 0 && before + 1 == static_cast<uint32_t>(count) ? 1 : 0) != 0;
}

}  // namespace splash::gpu::arch
