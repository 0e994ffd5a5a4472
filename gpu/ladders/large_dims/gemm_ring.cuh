#pragma once
// What the products of rung 6 share: a persistent block of one producing and two multiplying warpgroups
// around a ring of shared-memory stages. The producer runs ahead across tiles, so that a tile's first loads
// hide behind the tile before it. sm_90a.

#include "gpu/arch/bulk_copy.cuh"
#include "gpu/arch/mbarrier.cuh"
#include "gpu/arch/tensor_map.h"
#include "gpu/arch/warpgroup.cuh"
#include "gpu/arch/wgmma.cuh"
#include "gpu/ladders/large_dims/common.cuh"

namespace splash::gpu::large_dims {

constexpr int kConsumers = 2, kGemmThreads = 128 * (1 + kConsumers);
constexpr int kPanel = 128;  // bytes a row of a stage: the swizzle's width, 64 bf16 or 32 floats
constexpr int kStages = 4;

// A 128-row operand of one stage and a 256-row one, whatever they are: 48 KB.
constexpr int kSmallRows = 128, kLargeRows = 256;
struct Stage {
  unsigned char small[kSmallRows * kPanel];
  unsigned char large[kLargeRows * kPanel];
};

struct Ring {
  Stage stages[kStages];  // 1024-byte aligned: first
  uint64_t full[kStages], empty[kStages];
};

struct RingPosition {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

__device__ inline void init_ring(Ring& ring) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      arch::mbarrier_init(&ring.full[i], 1);
      arch::mbarrier_init(&ring.empty[i], 4 * kConsumers);  // a warp each
    }
    arch::mbarrier_init_fence();
  }
  __syncthreads();
}

// By one thread: fills a stage a step with what load(stage, barrier, step) asks for, `bytes` in all.
template <class Load>
__device__ void produce(Ring& ring, RingPosition& at, int steps, uint32_t bytes, Load&& load) {
  for (int step = 0; step < steps; ++step, at.next()) {
    arch::mbarrier_wait(&ring.empty[at.stage], at.parity ^ 1);
    arch::mbarrier_arrive_expect(&ring.full[at.stage], bytes);
    load(ring.stages[at.stage], &ring.full[at.stage], step);
  }
}

__device__ inline void release(Ring& ring, int stage) {
  if (threadIdx.x % 32 == 0) arch::mbarrier_arrive(&ring.empty[stage]);
}

// By a consumer: multiply(stage, step) issues products of one stage. One step's products stay under way while
// the next are issued; a stage is released once its own are done.
template <int kRegisters, class Multiply>
__device__ void consume(Ring& ring, RingPosition& at, int steps, float (&sums)[kRegisters],
                        Multiply&& multiply) {
  int previous = 0;
  for (int step = 0; step < steps; ++step, at.next()) {
    arch::mbarrier_wait(&ring.full[at.stage], at.parity);
    arch::wgmma_fence();
    multiply(ring.stages[at.stage], step);
    arch::wgmma_commit();
    arch::wgmma_wait<1>();
    if (step > 0) release(ring, previous);
    previous = at.stage;
  }
  arch::wgmma_wait<0>();
  release(ring, previous);
  arch::wgmma_hold(sums);
}

}  // namespace splash::gpu::large_dims
