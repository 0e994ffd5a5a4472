#pragma once
// Floats as unsigned numbers in the same order. Compiles without nvcc.

#include <cstdint>
#include <cstring>

#include "core/host_device.h"

namespace splash::gpu::entmax {

// Bits that compare as unsigned numbers like the floats do; -0 and 0 give the same.
SPLASH_HOST_DEVICE uint32_t ordered_bits(float x) {
  x += 0.0f;
  uint32_t bits = 0;
  memcpy(&bits, &x, sizeof bits);
  return bits ^ ((bits >> 31) != 0 ? 0xFFFFFFFFu : 0x80000000u);
}
SPLASH_HOST_DEVICE float from_ordered_bits(uint32_t ordered) {
  const uint32_t bits = ordered ^ ((ordered >> 31) != 0 ? 0x80000000u : 0xFFFFFFFFu);
  float x = 0;
  memcpy(&x, &bits, sizeof x);
  return x;
}

}  // namespace splash::gpu::entmax
