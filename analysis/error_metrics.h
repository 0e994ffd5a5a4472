#pragma once
// How far an output is from a reference, and how sparse a result is (MATH: Counting).

#include <cstdint>
#include <span>

namespace splash::analysis {

struct ErrorMetrics {
  double mse = 0;        // mean of (out - ref)^2
  double nmse = 0;       // ||out - ref||^2 / ||ref||^2; 0/0 is 0
  double max_error = 0;  // max |out - ref|; NaN if one side is NaN and the other is not
};

// Throws InvalidArgument if the lengths differ. NaN in the same place on both sides counts as equal.
ErrorMetrics compare_arrays(std::span<const double> out, std::span<const double> ref);

// The share |a and b| / |b| of two sets of keys: how much of `reference` (b) `found` (a) holds. No key may
// occur twice. 1 if b is empty.
double recall(std::span<const int32_t> found, std::span<const int32_t> reference);

}  // namespace splash::analysis
