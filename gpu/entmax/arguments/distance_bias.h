#pragma once
// A bias of scores by head and distance (core/distance_bias.h) as kernels read it. Compiles without nvcc.

#include <cstdint>

#include "core/attention_spec.h"
#include "core/host_device.h"

namespace splash::gpu::entmax {

struct DeviceBias {
  const float* table = nullptr;  // [q_heads, distances] in device memory; null: none
  int distances = 1;
  int first = 0;  // key - query of a head's first entry

  SPLASH_HOST_DEVICE const float* of_head(int head) const {
    return table == nullptr ? nullptr : table + int64_t{head} * distances;
  }

  // Which entry of its head a pair has. Shapes that require_forward takes overflow nothing.
  SPLASH_HOST_DEVICE int entry(int query, int key) const {
    const int at = key - query - first;
    return at < 0 ? 0 : at < distances ? at : distances - 1;
  }
};

inline DeviceBias device_bias(const AttentionSpec& spec, const float* table) {
  if (!spec.bias.any()) return {};
  return {table, static_cast<int>(spec.bias.distances),
          static_cast<int>(spec.bias.first + spec.shape.kv_len - spec.shape.q_len)};
}

}  // namespace splash::gpu::entmax
