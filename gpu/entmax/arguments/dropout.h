#pragma once
// Dropout of probabilities (core/dropout.h) as kernels read it. Compiles without nvcc.

#include <cstdint>

#include "core/dropout.h"
#include "core/host_device.h"

namespace splash::gpu::entmax {

struct DeviceDropout {
  const uint64_t* seed = nullptr;  // [1] in device memory; null: nothing is dropped
  uint64_t threshold = 0;          // DropoutRow::threshold_of the rate
  float factor = 1;                // 1 / (1 - rate)
};

inline DeviceDropout device_dropout(const Dropout& dropout, const uint64_t* seed) {
  if (!dropout.drops()) return {};
  return {seed, DropoutRow::threshold_of(dropout.rate), static_cast<float>(1 / (1 - dropout.rate))};
}

// What a row's probabilities are multiplied by in the output. `dropout` must outlive it; in a kernel it lies
// among the parameters, where it costs no registers.
class DropoutFactors {
 public:
  SPLASH_HOST_DEVICE DropoutFactors(const DeviceDropout& dropout, int64_t row)
      : dropout_(dropout), row_(dropout.threshold, dropout.seed != nullptr ? *dropout.seed : 0, row) {}

  SPLASH_HOST_DEVICE float of(int64_t key) const { return row_.keeps(key) ? dropout_.factor : 0.0f; }

 private:
  const DeviceDropout& dropout_;
  DropoutRow row_;
};

}  // namespace splash::gpu::entmax
