#include "cpu_ref/entmax/halley_bisection.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include "cpu_ref/entmax/bracket.h"
#include "cpu_ref/entmax/row_solution.h"

namespace splash::cpu_ref {
namespace {

// offset - 2 f f' / (2 f'^2 - f f''). NaN, or outside any bracket, if a derivative is infinite.
template <class T>
T halley_step(T offset, const RowSums& sums) {
  const double f = sums.f(), slope = sums.slope;
  return static_cast<T>(offset + 2 * f * slope / (2 * slope * slope - f * sums.curvature));
}

}  // namespace

template <class T>
RowSolution<T> solve_halley_bisection(std::span<const T> z, T max, double alpha,
                                      const SolverOptions& options) {
  const int64_t n = static_cast<int64_t>(z.size());
  Bracket<T> bracket(n, alpha);
  T at = clamped_start<T>(options, n, alpha, bracket.middle());
  RowSums sums = evaluate(z.data(), n, max, at, alpha);
  T best = at;
  RowSums best_sums = sums;
  bool slow = false;
  int iterations = 0;
  const int cap = bracket.cap(options);
  const double rounding =
      4 * (1 + 1 / (alpha - 1)) * std::numeric_limits<T>::epsilon();  // of f near the root
  while (std::abs(sums.f()) > options.tolerance && iterations < cap) {
    const double f = sums.f();
    bracket.narrow(at, f);
    T next = halley_step(at, sums);
    if (next == at) {
      // Either this is the root, or derivatives for alpha > 2 overflow and the step vanishes: then try the
      // neighbour.
      if (std::abs(f) <= rounding) break;
      next = std::nextafter(at, f > 0 ? bracket.high : bracket.low);
    }
    const bool halley = !slow && bracket.inside(next);
    if (!halley) next = bracket.middle();
    if (!bracket.inside(next)) break;
    at = next;
    sums = evaluate(z.data(), n, max, at, alpha);
    ++iterations;
    slow = alpha > 2 && halley && std::abs(sums.f()) > std::abs(f) / 2;
    if (std::abs(sums.f()) < std::abs(best_sums.f())) {
      best = at;
      best_sums = sums;
    }
  }
  return row_solution(max, best, iterations, best_sums);
}

template RowSolution<float> solve_halley_bisection(std::span<const float>, float, double,
                                                   const SolverOptions&);
template RowSolution<double> solve_halley_bisection(std::span<const double>, double, double,
                                                    const SolverOptions&);

}  // namespace splash::cpu_ref
