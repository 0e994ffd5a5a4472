#pragma once
// Bisection (Peters, Niculae, Martins 2019, arXiv 1905.05702): the reference, any alpha > 1.
// Halves [-1, -n^(1-alpha)] until no T lies strictly inside: about 24 halvings in float and 53 in double,
// more where tau is close to the maximum, since tau is then known to more digits. Of the points seen, the one
// with the smallest |f| is returned.
//
// Time O(n) per halving, memory O(1).

#include <span>

#include "cpu_ref/entmax/solver.h"

namespace splash::cpu_ref {

// z: [n], n >= 1, with a visible key and no NaN or +inf; max: the largest of them.
template <class T>
RowSolution<T> solve_bisection(std::span<const T> z, T max, double alpha, const SolverOptions& options);

}  // namespace splash::cpu_ref
