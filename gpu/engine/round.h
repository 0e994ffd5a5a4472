#pragma once
// Whole numbers of things that are larger than one. Compiles without nvcc.

#include <cstdint>

namespace splash::gpu {

constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
constexpr int64_t round_up(int64_t a, int64_t b) {
  return ceil_div(a, b) * b;
}

}  // namespace splash::gpu
