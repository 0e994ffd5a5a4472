#pragma once
// An open interval (low, high) of T that holds tau - max, for the bracketed solvers.

#include <cmath>
#include <cstdint>

#include "cpu_ref/entmax/evaluate.h"
#include "cpu_ref/entmax/solver.h"

namespace splash::cpu_ref {

template <class T>
struct Bracket {
  T low, high;

  // One step beyond [-1, -n^(1-alpha)], so that both of its ends can be found: -1 is tau where one key takes
  // all.
  Bracket(int64_t n, double alpha)
      : low(std::nextafter(T(-1), T(-2))), high(std::nextafter(bracket_high<T>(n, alpha), T(1))) {}

  T middle() const { return low + (high - low) / 2; }
  bool inside(T at) const { return low < at && at < high; }
  void narrow(T at, double f) { (f > 0 ? low : high) = at; }

  // Each halving removes a T from the interval, so this only bounds the count: every mantissa bit and every
  // binade.
  static int cap(const SolverOptions& options) {
    return options.max_iterations > 0 ? options.max_iterations : 1200;
  }
};

}  // namespace splash::cpu_ref
