#pragma once
// Transaction barriers in shared memory (sm_90). A phase ends when all expected threads have arrived and all
// expected bytes have landed. Waiting for parity 1 on a fresh barrier returns at once.
//
//   __shared__ uint64_t full;
//   if (threadIdx.x == 0) { mbarrier_init(&full, 1); mbarrier_init_fence(); }
//   __syncthreads();
//   if (threadIdx.x == 0) { mbarrier_arrive_expect(&full, bytes); bulk_load(tile, source, bytes, &full); }
//   mbarrier_wait(&full, parity);

#include "gpu/arch/ring_position.cuh"
#include "gpu/arch/shared_pointer.cuh"

namespace splash::gpu::arch {

__device__ __forceinline__ void mbarrier_init(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
               : "memory");
}

// Makes the inits visible to TMA. The thread that did them calls it, before the block's barrier.
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Arrives without waiting and returns the barrier's state. Pass the state to mbarrier_was_last() later to
// learn whether this thread arrived last; this holds if all expected threads arrive in this way.
__device__ __forceinline__ uint64_t mbarrier_arrive_pending(uint64_t* barrier) {
  uint64_t state;  // before this arrival
  asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];"
               : "=l"(state)
               : "r"(shared_address(barrier))
               : "memory");
  return state;
}
__device__ __forceinline__ bool mbarrier_was_last(uint64_t state) {
  uint32_t pending;
  asm("mbarrier.pending_count.b64 %0, %1;" : "=r"(pending) : "l"(state));
  return pending == 1;
}

// Arrives, and makes the phase wait for `bytes` more bytes of bulk copies.
__device__ __forceinline__ void mbarrier_arrive_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}

// Makes the phase wait for `bytes` more bytes, without arriving.
__device__ __forceinline__ void mbarrier_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}

// Suspends the thread until the phase ends or a hardware time limit passes; false in the latter case.
__device__ __forceinline__ bool mbarrier_try_wait(uint64_t* barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

__device__ __forceinline__ void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
  while (!mbarrier_try_wait(barrier, parity)) {
  }
}

}  // namespace splash::gpu::arch
