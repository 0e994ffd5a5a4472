#pragma once
// Newton's method on f from the left, 1 < alpha <= 2. f is convex and decreasing there, so the iterates rise
// and never overshoot: each is a lower bound of tau (to a few roundings of tau, because f is computed in T).
// For alpha = 2 this is Michelot's algorithm (1986). From the cold start -1, about log(n) steps precede the
// final, quadratic ones.
//
// Time O(n) per iteration, memory O(1).

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

// The inner loop, without checks or allocation. It also serves short candidate lists. These need not hold the
// row's maximum (pass the row's, or any other origin, as `max`) and need not be ordered. z: [n], n >= 0.
//
// offset: where to start, relative to max. If that is left of the list's own root, the iterates rise to the
// root. If it is right of the root, the first step goes left of it, but not beyond (largest of z) - 1; so a
// list without keys above `offset` is solved as well. n = 0 returns offset. max_iterations 0: iterate until
// tau stands still in T.
template <class T>
NewtonResult<T> newton_refine(const T* z, int64_t n, T max, T offset, double alpha, int max_iterations = 0,
                              double tolerance = 0);

// z: [n], n >= 1, with a visible key and no NaN or +inf. Starts from options.start clamped to the bracket,
// otherwise from -1.
template <class T>
RowSolution<T> solve_newton(std::span<const T> z, T max, double alpha, const SolverOptions& options);

}  // namespace splash::cpu_ref
