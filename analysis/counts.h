#pragma once
// Operation and byte counts of attention (MATH: Counting). Each formula stands beside the numbers it gives.

#include <cstdint>

namespace splash::analysis {

// Useful FLOPs of dense attention on `pairs` visible (query, key) pairs: 2 d for the score, 2 d for the
// value.
constexpr double forward_flops(double pairs, double head_dim) {
  return 4.0 * pairs * head_dim;
}
// Five products: S again, dP, dV, dQ, dK.
constexpr double backward_flops(double pairs, double head_dim) {
  return 10.0 * pairs * head_dim;
}

// FLOP per byte.
constexpr double arithmetic_intensity(double flops, double bytes) {
  return flops / bytes;
}

// 1 - nonzero / visible; takes elements or blocks.
constexpr double sparsity(double nonzero, double visible) {
  return visible > 0 ? 1.0 - nonzero / visible : 0.0;
}

}  // namespace splash::analysis
