#pragma once
// One call for a profiler that waits to be told when to look: ncu --profile-from-start off. Compiles without
// nvcc.

#include <functional>

#include "gpu/engine/memory.h"

namespace splash::gpu {

// Calls once unseen, to load the module, then once between cudaProfilerStart and cudaProfilerStop. Throws
// DeviceError where a call fails.
void profile_call(const std::function<void()>& enqueue, const Stream& stream);

}  // namespace splash::gpu
