#pragma once
// Halley's method inside a bracket, with bisection as fallback (AdaSplash: Gonçalves, Treviso, Martins 2025,
// arXiv 2502.12082); any alpha > 1. Halley may overshoot, so a step that leaves the bracket is replaced by
// the bracket's middle. This project's addition for alpha > 2, where f is infinitely steep below each key:
// the step after one that did not halve |f| also goes to the middle. For alpha = 2, f'' = 0 and the steps are
// Newton's. Returns the visited point with the smallest |f|.
//
// Time O(n) per iteration, memory O(1).

#include <span>

#include "cpu_ref/entmax/solver.h"

namespace splash::cpu_ref {

// z: [n], n >= 1, with a visible key and no NaN or +inf; max: the largest of them. Starts from options.start
// clamped to the bracket, otherwise from the bracket's middle.
template <class T>
RowSolution<T> solve_halley_bisection(std::span<const T> z, T max, double alpha,
                                      const SolverOptions& options);

}  // namespace splash::cpu_ref
