#pragma once
// A kernel that spins, for what it tells and for what it hides. Compiles without nvcc.

#include "gpu/engine/memory.h"

namespace splash::gpu {

// The multiprocessor clock that work sees, read by one block over 50 us; waits for the stream.
double measure_clock_hz(const Stream& stream);

// Enqueues 50 us of idling, while which the host fills the queue: else events around a short call would time
// the host.
void spin(const Stream& stream);

}  // namespace splash::gpu
