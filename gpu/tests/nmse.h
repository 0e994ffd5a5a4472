#pragma once
// Normalized squared errors of what kernels compute, against the float64 oracle.

#include <cmath>
#include <limits>
#include <vector>

#include "core/tensor.h"

namespace splash::gpu::testing {

// Added to the norm, for zeros that are only nearly 0 in the oracle.
constexpr double kLeastNorm = 1e-9;

// ||out - expected||^2 / ||expected||^2.
inline double nmse(const double* out, const double* expected, int64_t size) {
  double error = 0, norm = kLeastNorm;
  for (int64_t i = 0; i < size; ++i) {
    error += (out[i] - expected[i]) * (out[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return error / norm;
}
inline double nmse(const Tensor<double>& out, const Tensor<double>& expected) {
  return nmse(out.data(), expected.data(), expected.size());
}

// The same over finite entries; +inf if NaN or infinities are in other places. left_out: rows to skip, one
// flag each; empty: none.
inline double nmse_or_inf(const Tensor<double>& out, const Tensor<double>& expected,
                          const std::vector<char>& left_out = {}, double least_norm = kLeastNorm) {
  double error = 0, norm = least_norm;
  for (int64_t i = 0; i < out.size(); ++i) {
    if (!left_out.empty() && left_out[static_cast<size_t>(i / out.dim())] != 0) continue;
    const double a = out.data()[i], b = expected.data()[i];
    if (std::isfinite(a) != std::isfinite(b)) return std::numeric_limits<double>::infinity();
    if (!std::isfinite(b)) continue;
    error += (a - b) * (a - b);
    norm += b * b;
  }
  return error / norm;
}

}  // namespace splash::gpu::testing
