#pragma once
// Measures how long the grid's first block ran. Construct a SpanClock at the kernel's start, and call close()
// at its end.

#include "gpu/ceilings/kernels.h"

namespace splash::gpu {

class SpanClock {
 public:
  __device__ SpanClock() {
    cycles_ = clock64();
    nanoseconds_ = now();
  }
  __device__ void close(ClockSpan* span) const {
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    span->cycles = static_cast<unsigned long long>(clock64() - cycles_);
    span->nanoseconds = now() - nanoseconds_;
  }

 private:
  static __device__ unsigned long long now() {
    unsigned long long nanoseconds = 0;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
    return nanoseconds;
  }
  long long cycles_;
  unsigned long long nanoseconds_;
};

}  // namespace splash::gpu
