#pragma once
// What the stubs of a build without CUDA (*_none.cpp) throw.

#include "core/error.h"
#include "gpu/device.h"

namespace splash::gpu {

[[noreturn]] inline void no_device() {
  throw NotBuilt("no CUDA device: " + device_unavailable_reason());
}

}  // namespace splash::gpu
