#pragma once
// Runs one call under a profiler that starts on request: ncu --profile-from-start off. Compiles without nvcc.

#include <functional>

#include "gpu/engine/memory.h"

namespace splash::gpu {

// Calls `enqueue` once unprofiled, to load the module, then once between cudaProfilerStart and
// cudaProfilerStop. Waits for the stream both times. Throws DeviceError if a call fails.
void profile_call(const std::function<void()>& enqueue, const Stream& stream);

}  // namespace splash::gpu
