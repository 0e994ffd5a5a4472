#pragma once
// A GPU's compute capability as one number.

#include "gpu/device.h"

namespace splash::gpu {

// 90 for 9.0.
inline int compute_capability_of(const DeviceInfo& device) {
  return 10 * device.compute_major + device.compute_minor;
}

}  // namespace splash::gpu
