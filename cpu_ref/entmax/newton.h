#pragma once
// Newton's method on f from the left, 1 < alpha <= 2. f is convex and decreasing there, so the iterates rise
// and never overshoot: each is a lower bound of tau (to a few roundings of tau, f being computed in T).
// For alpha = 2 this is Michelot's algorithm (1986); from the cold start -1 about log(n) steps lead to the
// quadratic last ones.
//
// Time O(n) an iteration, memory O(1).

#include <cstdint>
#include <span>

#include "cpu_ref/entmax/evaluate.h"
#include "cpu_ref/entmax/solver.h"

namespace splash::cpu_ref {

template <class T>
struct NewtonResult {
  T offset = 0;        // the last iterate
  int iterations = 0;  // steps taken
  RowSums sums;        // at offset
};

// The inner loop, without checks or allocation: for short candidate lists too, which need not hold the row's
// maximum (pass the row's, or any other origin, as `max`) and need not be ordered. z: [n], n >= 0.
//
// offset: where to start, relative to max. From the left of the list's own root it rises to it. From the
// right it first steps left of the root, no further than (largest of z) - 1; so a list without keys above
// `offset` is solved as well. n = 0 returns offset. max_iterations 0: until it stands still in T.
template <class T>
NewtonResult<T> newton_refine(const T* z, int64_t n, T max, T offset, double alpha, int max_iterations = 0,
                              double tolerance = 0);

// z: [n], n >= 1, with a visible key and no NaN or +inf. Starts from options.start clamped to the bracket,
// else -1.
template <class T>
RowSolution<T> solve_newton(std::span<const T> z, T max, double alpha, const SolverOptions& options);

}  // namespace splash::cpu_ref
