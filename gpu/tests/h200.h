#pragma once
// The device that host tests plan for.

#include "gpu/device.h"

namespace splash::gpu::testing {

inline DeviceInfo h200() {
  DeviceInfo device;
  device.name = "an H200";
  device.compute_major = 9;
  device.multiprocessors = 132;
  device.memory_bytes = int64_t{140} << 30;
  device.l2_bytes = int64_t{60} << 20;
  device.shared_bytes_per_multiprocessor = 228 * 1024;
  device.shared_bytes_per_block = 227 * 1024;
  return device;
}

}  // namespace splash::gpu::testing
