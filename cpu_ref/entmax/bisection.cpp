#include "cpu_ref/entmax/bisection.h"

#include <cmath>
#include <cstdint>

#include "cpu_ref/entmax/bracket.h"
#include "cpu_ref/entmax/row_solution.h"

namespace splash::cpu_ref {

template <class T>
RowSolution<T> solve_bisection(std::span<const T> z, T max, double alpha, const SolverOptions& options) {
  const int64_t n = static_cast<int64_t>(z.size());
  Bracket<T> bracket(n, alpha);
  T best = bracket.middle();
  RowSums best_sums = evaluate(z.data(), n, max, best, alpha);
  T at = best;
  double f = best_sums.f();
  int iterations = 0;
  const int cap = bracket.cap(options);
  while (std::abs(f) > options.tolerance && iterations < cap) {
    bracket.narrow(at, f);
    at = bracket.middle();
    if (!bracket.inside(at)) break;
    const RowSums sums = evaluate(z.data(), n, max, at, alpha);
    f = sums.f();
    ++iterations;
    if (std::abs(f) < std::abs(best_sums.f())) {
      best = at;
      best_sums = sums;
    }
  }
  return row_solution(max, best, iterations, best_sums);
}

template RowSolution<float> solve_bisection(std::span<const float>, float, double, const SolverOptions&);
template RowSolution<double> solve_bisection(std::span<const double>, double, double, const SolverOptions&);

}  // namespace splash::cpu_ref
