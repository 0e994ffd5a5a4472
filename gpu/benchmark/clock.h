#pragma once
// A kernel that spins: it measures the SM clock, and it hides the host's launch cost. Compiles without nvcc.

#include "gpu/engine/memory.h"

namespace splash::gpu {

// The SM clock in Hz as a kernel sees it, measured by one block over 50 us. Waits for the stream. Throws
// DeviceError if CUDA fails.
double measure_clock_hz(const Stream& stream);

// Enqueues a kernel that spins for 50 us. The host fills the queue meanwhile; without this, events around a
// short call would time the host. Throws DeviceError if the launch fails.
void spin(const Stream& stream);

}  // namespace splash::gpu
