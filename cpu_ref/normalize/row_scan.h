#pragma once
// What every normalizer needs of a row before it starts: its largest score, and whether the row is poisoned.

#include <cstdint>
#include <limits>
#include <span>

namespace splash::cpu_ref {

template <class T>
struct RowScan {
  T max = -std::numeric_limits<T>::infinity();  // largest score below +inf; -inf: no visible key
  bool poisoned = false;                        // a score is NaN or +inf

  bool empty() const { return max == -std::numeric_limits<T>::infinity(); }
};

// One pass, vectorised. scores: [n], n >= 0.
template <class T>
RowScan<T> scan_row(std::span<const T> scores) {
  constexpr T kLargest = std::numeric_limits<T>::max();
  T max = -std::numeric_limits<T>::infinity();
  int poisoned = 0;
  const T* s = scores.data();
  const int64_t n = static_cast<int64_t>(scores.size());
#pragma omp simd reduction(max : max) reduction(| : poisoned)
  for (int64_t j = 0; j < n; ++j) {
    const bool finite_or_masked = s[j] <= kLargest;  // false for NaN, too
    poisoned |= !finite_or_masked;
    max = finite_or_masked && s[j] > max ? s[j] : max;
  }
  return {max, poisoned != 0};
}

}  // namespace splash::cpu_ref
