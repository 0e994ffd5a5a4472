#pragma once
// The histogram lower bound of AdaSplash-2 (arXiv 2604.15180), then Newton from it; 1 < alpha <= 2.
//
// Time O(n + bins) for the bound and O(n) an iteration after it, memory O(bins).

#include <span>

#include "cpu_ref/entmax/solver.h"

namespace splash::cpu_ref {

// A lower bound of tau - max, no more than 1/bins below it (both to rounding): the solution for scores
// floored to the lower edges of `bins` equal bins over [max - 1, max]. Keys equal to the maximum keep their
// value, which the paper does for one of them only. z: [n], n >= 1, with a visible key and no NaN or +inf;
// max its largest; bins >= 1.
template <class T>
T histogram_lower_bound(std::span<const T> z, T max, double alpha, int bins);

// iterations counts the Newton steps over the row, not those over the bins. options.start is not used.
template <class T>
RowSolution<T> solve_histogram(std::span<const T> z, T max, double alpha, const SolverOptions& options);

}  // namespace splash::cpu_ref
