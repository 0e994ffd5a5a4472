#pragma once
// The histogram lower bound of AdaSplash-2 (arXiv 2604.15180), then Newton from it; 1 < alpha <= 2.
//
// Time O(n + bins) for the bound and O(n) per iteration after it, memory O(bins).

#include <span>

#include "cpu_ref/entmax/solver.h"

namespace splash::cpu_ref {

// A lower bound of tau - max, at most 1/bins below it (both up to rounding). It is the solution for scores
// that are floored to the lower edges of `bins` equal bins over [max - 1, max]. Keys equal to the maximum
// keep their value; the paper does that for only one of them. z: [n], n >= 1, with a visible key and no NaN
// or +inf; max: the largest of them; bins >= 1.
template <class T>
T histogram_lower_bound(std::span<const T> z, T max, double alpha, int bins);

// iterations counts the Newton steps over the row, not those over the bins. Ignores options.start.
template <class T>
RowSolution<T> solve_histogram(std::span<const T> z, T max, double alpha, const SolverOptions& options);

}  // namespace splash::cpu_ref
