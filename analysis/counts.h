#pragma once
// Operation and byte counts of attention (MATH: Counting). Formulas stand beside the numbers they give.

#include <cstdint>

namespace splash::analysis {

// Dense useful FLOPs of `pairs` visible (query, key) pairs: 2 d for the score, 2 d for the value.
constexpr double forward_flops(double pairs, double head_dim) {
  return 4.0 * pairs * head_dim;
}
// Five products: S again, dP, dV, dQ, dK.
constexpr double backward_flops(double pairs, double head_dim) {
  return 10.0 * pairs * head_dim;
}

// FLOP a byte.
constexpr double arithmetic_intensity(double flops, double bytes) {
  return flops / bytes;
}

// 1 - nnz / visible, and the same for blocks.
constexpr double sparsity(double nonzero, double visible) {
  return visible > 0 ? 1.0 - nonzero / visible : 0.0;
}

}  // namespace splash::analysis
