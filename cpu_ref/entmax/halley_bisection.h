#pragma once
// Halley's method inside a bracket, else bisection (AdaSplash: Gonçalves, Treviso, Martins 2025, arXiv
// 2502.12082); any alpha > 1. Halley may overshoot, so a step that leaves the bracket is replaced by its
// middle. Ours, for alpha > 2, where f is infinitely steep under each key: so is the step after one that did
// not halve |f|. For alpha = 2, f'' = 0 and the steps are Newton's. Of the points seen, the one with the
// smallest |f| is returned.
//
// Time O(n) an iteration, memory O(1).

#include <span>

#include "cpu_ref/entmax/solver.h"

namespace splash::cpu_ref {

// z: [n], n >= 1, with a visible key and no NaN or +inf; max its largest. Starts from options.start clamped
// to the bracket, else from the bracket's middle.
template <class T>
RowSolution<T> solve_halley_bisection(std::span<const T> z, T max, double alpha,
                                      const SolverOptions& options);

}  // namespace splash::cpu_ref
