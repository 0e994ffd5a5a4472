#include "cpu_ref/entmax/newton.h"

#include <algorithm>
#include <cmath>

#include "cpu_ref/entmax/row_solution.h"

namespace splash::cpu_ref {
namespace {

constexpr int kIterationCap = 500;

}  // namespace

template <class T>
NewtonResult<T> newton_refine(const T* z, int64_t n, T max, T offset, double alpha, int max_iterations,
                              double tolerance) {
  NewtonResult<T> result{offset, 0, evaluate(z, n, max, offset, alpha)};
  if (n == 0) return result;
  const int cap = max_iterations > 0 ? max_iterations : kIterationCap;
  while (result.iterations < cap) {
    const double f = result.sums.f();
    if (std::abs(f) <= tolerance) break;
    T next = static_cast<T>(result.offset + f / result.sums.slope);
    if (f > 0) {
      if (!(next > result.offset)) break;  // tau stands still
    } else {
      if (result.iterations > 0) break;  // only rounding takes a later iterate past the root
      const T low = *std::max_element(z, z + n) - max - 1;
      if (!(next > low)) next = low;  // also if no key lies above offset, where the slope is 0
    }
    result.offset = next;
    result.sums = evaluate(z, n, max, next, alpha);
    ++result.iterations;
  }
  return result;
}

template <class T>
RowSolution<T> solve_newton(std::span<const T> z, T max, double alpha, const SolverOptions& options) {
  const int64_t n = static_cast<int64_t>(z.size());
  const T start = clamped_start<T>(options, n, alpha, T(-1));
  const auto newton =
      newton_refine(z.data(), n, max, start, alpha, options.max_iterations, options.tolerance);
  return row_solution(max, newton.offset, newton.iterations, newton.sums);
}

template NewtonResult<float> newton_refine(const float*, int64_t, float, float, double, int, double);
template NewtonResult<double> newton_refine(const double*, int64_t, double, double, double, int, double);
template RowSolution<float> solve_newton(std::span<const float>, float, double, const SolverOptions&);
template RowSolution<double> solve_newton(std::span<const double>, double, double, const SolverOptions&);

}  // namespace splash::cpu_ref
