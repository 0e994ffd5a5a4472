#pragma once
// Arithmetic that the gradients of entmax and of given thresholds share.

#include <algorithm>
#include <cmath>
#include <limits>

namespace splash::cpu_ref {

// (e^x - 1 - x) / x^2 for x >= 0.
inline double second_exponential(double x) {
  if (x > 0.5) return (std::expm1(x) - x) / (x * x);
  double sum = 1;
  for (int k = 16; k > 2; --k) sum = 1 + sum * x / k;
  return sum / 2;
}

// Values beyond T's range become T's largest number.
template <class T>
T saturated(double value) {
  constexpr double kMost = std::numeric_limits<T>::max();
  return static_cast<T>(std::clamp(value, -kMost, kMost));
}

}  // namespace splash::cpu_ref
