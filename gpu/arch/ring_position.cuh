#pragma once
// How producers and consumers count through a ring of stages (mbarrier.cuh).

#include <cstdint>

namespace splash::gpu::arch {

// The current stage of a ring and its phase's parity. A stage is one tile with its own barriers. Producers
// and consumers call next() once per tile, so they visit the same stages in the same order.
template <int kStages>
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

}  // namespace splash::gpu::arch
