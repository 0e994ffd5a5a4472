#pragma once
// Vectors of the host in device memory, and back. Compiles without nvcc.

#include <vector>

#include "gpu/engine/memory.h"

namespace splash::gpu {

template <class T>
DeviceBuffer uploaded(const Stream& stream, const std::vector<T>& values) {
  DeviceBuffer buffer(stream, static_cast<int64_t>(values.size() * sizeof(T)));
  buffer.upload(values.data(), buffer.bytes());
  return buffer;
}

// All of the buffer. Waits for the device.
template <class T>
std::vector<T> downloaded(const DeviceBuffer& buffer) {
  std::vector<T> values(static_cast<size_t>(buffer.bytes()) / sizeof(T));
  buffer.download(values.data(), buffer.bytes());
  return values;
}

}  // namespace splash::gpu
