#pragma once
// How producers and consumers count the places of a ring of tiles (mbarrier.cuh).

#include <cstdint>

namespace splash::gpu::arch {

// A place in a ring of kStages tiles, each with its barriers, and the parity of its phase. Producers and
// consumers count alike.
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
