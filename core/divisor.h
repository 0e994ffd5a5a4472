#pragma once
// Division by a number that is known before a kernel starts: a multiplication and a shift, where a GPU takes
// some 25 instructions for a division. Compiles with and without nvcc.

#include <bit>
#include <cstdint>

#include "core/host_device.h"

namespace splash {

// Divides numbers below 2^31 by 1 <= divisor < 2^31, exactly (Granlund and Montgomery 1994, theorem 4.2):
// with 2^(s - 1) < divisor <= 2^s and m = floor(2^(31 + s) / divisor) + 1, which is below 2^32, n / divisor
// is floor(m n / 2^(31 + s)).
class Divisor {
 public:
  Divisor() = default;
  explicit Divisor(uint32_t divisor)
      : shift_(31 + static_cast<uint32_t>(std::bit_width(divisor - 1))),
        factor_(static_cast<uint32_t>((uint64_t{1} << shift_) / divisor + 1)) {}

  SPLASH_HOST_DEVICE uint32_t quotient(uint32_t n) const {
    return static_cast<uint32_t>(uint64_t{n} * factor_ >> shift_);
  }

 private:
  uint32_t shift_ = 31, factor_ = (1u << 31) + 1;  // by 1
};

}  // namespace splash
