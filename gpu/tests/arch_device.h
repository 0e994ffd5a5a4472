#pragma once
// Copies host vectors to the device and back.

#include <vector>

#include "gpu/engine/memory.h"

namespace splash::gpu::testing {

template <class T>
DeviceBuffer to_device(const Stream& stream, const std::vector<T>& values) {
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
  DeviceBuffer buffer(stream, bytes);
  buffer.upload(values.data(), bytes);
  return buffer;
}

template <class T>
std::vector<T> to_host(const DeviceBuffer& buffer) {
  std::vector<T> values(static_cast<size_t>(buffer.bytes()) / sizeof(T));
  buffer.download(values.data(), buffer.bytes());
  return values;
}

}  // namespace splash::gpu::testing
