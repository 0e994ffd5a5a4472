#pragma once
// f(tau) = sum [z - tau]_+^beta - 1 and its derivatives over one row, beta = 1/(alpha-1). Every solver
// iterates on these.
//
// The row is read as x = z - max on the fly and tau as max + offset, so nothing is copied; pass max = 0 for a
// row that is already shifted. Masked keys (-inf) add nothing. Nothing is checked: no NaN, no +inf, alpha >
// 1.
//
// alpha 1.5 and 2 are sums of squares and of first powers, which vectorise; any other alpha costs one pow per
// supported key. Sums are in the type of max and offset within blocks of 256 keys and in double between
// blocks, so a float row of any length loses only a few roundings. Sums over a float row can also be in
// double.

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace splash::cpu_ref {

// Sums over the keys above the threshold, d = x - offset > 0.
struct RowSums {
  double mass = 0;       // sum d^beta: the sum of p
  double slope = 0;      // sum beta d^(beta-1) = -f'; may be infinite for beta < 1
  double curvature = 0;  // sum beta (beta-1) d^(beta-2) = f''; may be infinite for beta < 2
  int64_t support = 0;   // keys with p > 0

  double f() const { return mass - 1; }
};

// The upper end of where tau can lie: offset is in [-1, -n^(1-alpha)] for n keys. Masked keys may count,
// which only loosens it.
template <class T>
T bracket_high(int64_t n, double alpha) {
  return static_cast<T>(-std::pow(static_cast<double>(n), 1 - alpha));
}

// d^beta for d >= 0.
template <class T>
T entmax_power(T d, double alpha) {
  if (alpha == 1.5) return d * d;
  if (alpha == 2) return d;
  return std::pow(d, static_cast<T>(1 / (alpha - 1)));
}

// u = p^(2 - alpha) for p > 0: the derivative of p by its z with tau held fixed (MATH: Gradients).
template <class T>
T entmax_derivative(T p, double alpha) {
  if (alpha == 1.5) return std::sqrt(p);
  if (alpha == 2) return 1;
  return static_cast<T>(std::pow(static_cast<double>(p), 2 - alpha));
}

namespace detail {

template <int kBeta, class C, class T>
RowSums evaluate_integer(const T* z, int64_t n, C max, C offset) {
  static_assert(kBeta == 1 || kBeta == 2);
  constexpr int64_t kBlock = 256;
  double squares = 0, sum = 0;
  int64_t support = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(n, begin + kBlock);
    C block_squares = 0, block_sum = 0, block_support = 0;  // counts in C share the vector lanes
#pragma omp simd reduction(+ : block_squares, block_sum, block_support)
    for (int64_t j = begin; j < end; ++j) {
      const C distance = z[j] - max - offset;
      const C d = distance > 0 ? distance : C(0);
      if constexpr (kBeta == 2) block_squares += d * d;
      block_sum += d;
      block_support += distance > 0 ? C(1) : C(0);
    }
    squares += block_squares;
    sum += block_sum;
    support += static_cast<int64_t>(block_support);
  }
  if constexpr (kBeta == 2) return {squares, 2 * sum, 2.0 * static_cast<double>(support), support};
  return {sum, static_cast<double>(support), 0, support};
}

template <class C, class T>
RowSums evaluate_power(const T* z, int64_t n, C max, C offset, double alpha) {
  const double beta = 1 / (alpha - 1);
  const C exponent = static_cast<C>(beta);
  RowSums sums;
  for (int64_t j = 0; j < n; ++j) {
    const C d = z[j] - max - offset;
    if (!(d > 0)) continue;
    const C p = std::pow(d, exponent);
    const double first = static_cast<double>(p) / d;
    sums.mass += p;
    sums.slope += first;
    sums.curvature += first / d;
    sums.support += p > 0;  // far below the maximum a large beta underflows to 0
  }
  sums.slope *= beta;
  sums.curvature *= beta * (beta - 1);
  return sums;
}

}  // namespace detail

// z: [n], n >= 0. O(n), no allocation.
template <class C, class T>
RowSums evaluate(const T* z, int64_t n, C max, C offset, double alpha) {
  if (alpha == 1.5) return detail::evaluate_integer<2>(z, n, max, offset);
  if (alpha == 2) return detail::evaluate_integer<1>(z, n, max, offset);
  return detail::evaluate_power(z, n, max, offset, alpha);
}

}  // namespace splash::cpu_ref
