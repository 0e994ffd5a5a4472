#pragma once
// Small steps that the solvers share.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "cpu_ref/entmax/evaluate.h"
#include "cpu_ref/entmax/solver.h"

namespace splash::cpu_ref {

template <class T>
RowSolution<T> row_solution(T max, T offset, int iterations, const RowSums& sums) {
  return {max, offset, sums.support, iterations, static_cast<T>(std::abs(sums.f()))};
}

// The warm start clamped to the bracket; `cold` if there is none or it is NaN.
template <class T>
T clamped_start(const SolverOptions& options, int64_t n, double alpha, T cold) {
  if (options.start == nullptr || std::isnan(*options.start)) return cold;
  return static_cast<T>(std::clamp<double>(*options.start, -1, bracket_high<T>(n, alpha)));
}

}  // namespace splash::cpu_ref
