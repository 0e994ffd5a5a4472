#pragma once
// Blocks of a cluster and their shared memory (sm_90). store_async writes into another block's shared memory
// and counts its bytes on an mbarrier there, so neither side needs a fence. (The alternative,
// barrier.cluster.arrive.release, costs every thread a membar over the whole device.)
//
//   mbarrier_init(&full, 1); mbarrier_init_fence();      // thread 0
//   cluster_arrive();                                    // all threads; later, before the first store_async:
//   cluster_wait();
//   mbarrier_arrive_expect(&full, bytes);                // thread 0 of the receiver, once per phase
//   store_async(remote_address(&slot, rank), value, remote_address(&full, rank));
//   mbarrier_wait(&full, parity);                        // the receiver

#include "gpu/arch/shared_pointer.cuh"

namespace splash::gpu::arch {

__device__ __forceinline__ int cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}
__device__ __forceinline__ int cluster_size() {
  uint32_t size;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return static_cast<int>(size);
}

__device__ __forceinline__ int cluster_index() {  // of the grid's clusters, along x
  uint32_t index;
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(index));
  return static_cast<int>(index);
}

// All threads of all blocks call both. After the wait every block is running and has initialised its
// mbarriers. The pair orders no other memory access.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

// A barrier over all threads of all blocks. Afterwards each sees what any of them wrote before, including
// writes into another block's shared memory. The release is a membar over the whole device, so this suits
// kernels that call it rarely.
__device__ __forceinline__ void cluster_sync() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

// The address, in block `rank`, of the variable that is at `shared` in this block.
__device__ __forceinline__ uint32_t remote_address(const void* shared, int rank) {
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(shared)), "r"(rank));
  return address;
}

__device__ __forceinline__ void store_async(uint32_t address, float4 value, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
          address),
      "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void store_async(uint32_t address, float2 value, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(
          address),
      "f"(value.x), "f"(value.y), "r"(barrier)
      : "memory");
}

// What another block wrote there before a cluster_sync().
__device__ __forceinline__ void load_remote(uint32_t address, uint32_t& value) {
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
}
__device__ __forceinline__ void load_remote(uint32_t address, uint4& value) {
  asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
}

// The receiving block sees the value after cluster_sync().
__device__ __forceinline__ void store_remote(uint32_t address, uint4 value) {
  asm volatile("st.shared::cluster.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}

}  // namespace splash::gpu::arch
