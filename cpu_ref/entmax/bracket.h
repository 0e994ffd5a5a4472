#pragma once
// An open interval (low, high) of T that holds tau - max, for the bracketed solvers.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "cpu_ref/entmax/evaluate.h"
#include "cpu_ref/entmax/solver.h"

namespace splash::cpu_ref {

template <class T>
struct Bracket {
  T low, high;

  // One step wider than [-1, -n^(1-alpha)], so that both ends can be found: tau is -1 if one key takes
  // everything.
  Bracket(int64_t n, double alpha)
      : low(std::nextafter(T(-1), T(-2))), high(std::nextafter(bracket_high<T>(n, alpha), T(1))) {}

  T middle() const {
    // Far above alpha = 2, tau may lie hundreds of binades below the other end. Then this halves the number
    // of binades.
    const T nearest = std::max(-high, std::numeric_limits<T>::denorm_min());
    if (-low / 0x1p30F > nearest) return -std::sqrt(-low) * std::sqrt(nearest);
    return low + (high - low) / 2;
  }
  bool inside(T at) const { return low < at && at < high; }
  void narrow(T at, double f) { (f > 0 ? low : high) = at; }

  // Each halving removes a T from the interval, so this only caps the count: one halving per mantissa bit and
  // per binade.
  static int cap(const SolverOptions& options) {
    return options.max_iterations > 0 ? options.max_iterations : 1200;
  }
};

}  // namespace splash::cpu_ref
