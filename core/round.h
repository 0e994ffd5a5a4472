#pragma once
// Rounds whole numbers up. Kernels use it too: it compiles with and without nvcc.

#include <cstdint>

namespace splash {

// The least whole number of at least a / b; a >= 0, b > 0.
constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
// The least multiple of b that is at least a; a >= 0, b > 0.
constexpr int64_t round_up(int64_t a, int64_t b) {
  return ceil_div(a, b) * b;
}

}  // namespace splash
