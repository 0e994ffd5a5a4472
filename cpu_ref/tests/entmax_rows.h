#pragma once
// Rows and an independent oracle for the entmax tests.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "core/random.h"
#include "cpu_ref/entmax/solver.h"

namespace splash::cpu_ref::testing {

inline constexpr Solver kSolvers[] = {Solver::bisection, Solver::sorting, Solver::newton,
                                      Solver::halley_bisection, Solver::histogram};
inline constexpr double kGolden = 1.6180339887498948482;

template <class T>
inline constexpr double kEpsilon = std::numeric_limits<T>::epsilon();
template <class T>
inline constexpr T kInfinity = std::numeric_limits<T>::infinity();
template <class T>
inline constexpr T kNan = std::numeric_limits<T>::quiet_NaN();

// z = (alpha - 1) s, s ~ N(0, variance). [n]
template <class T>
std::vector<T> gaussian_row(uint64_t seed, int64_t n, double variance, double alpha) {
  const CounterRandom random(seed);
  std::vector<T> z(n);
  for (int64_t j = 0; j < n; ++j) z[j] = static_cast<T>((alpha - 1) * std::sqrt(variance) * random.normal(j));
  return z;
}

// Scores: one key `gap` above a crowd with standard deviation `sd`.
template <class T>
std::vector<T> sink_row(uint64_t seed, int64_t n, double gap, double sd, double alpha) {
  std::vector<T> z = gaussian_row<T>(seed, n, sd * sd, alpha);
  z[0] = static_cast<T>((alpha - 1) * gap);
  return z;
}

template <class T>
RowSolution<T> solve(Solver solver, const std::vector<T>& z, double alpha,
                     const SolverOptions& options = {}) {
  return solve_tau<T>(solver, std::span<const T>(z), alpha, options);
}

template <class T>
std::vector<T> probabilities(const std::vector<T>& z, double alpha, const RowSolution<T>& solution) {
  std::vector<T> p(z.size());
  entmax_probabilities<T>(std::span<const T>(z), alpha, solution, std::span<T>(p));
  return p;
}

template <class T>
double total(const std::vector<T>& p) {
  double sum = 0;
  for (const T value : p) sum += value;
  return sum;
}

// f at max + offset, term by term in long double; shares no code with the solvers.
template <class T>
long double f_at(const std::vector<T>& z, double alpha, long double offset) {
  const T max = *std::max_element(z.begin(), z.end());
  long double sum = -1;
  for (const T value : z) {
    const long double d = static_cast<long double>(static_cast<T>(value - max)) - offset;
    if (d > 0) sum += std::pow(d, 1 / (static_cast<long double>(alpha) - 1));
  }
  return sum;
}

// Whether f changes sign within `roundings` of the offset: then tau is right to that many units in the last
// place.
template <class T>
bool is_root(const std::vector<T>& z, double alpha, T offset, double roundings) {
  const long double reach = roundings * kEpsilon<T> * std::abs(static_cast<long double>(offset));
  return f_at(z, alpha, offset - reach) >= 0 && f_at(z, alpha, offset + reach) <= 0;
}

// The largest |sum p - 1| for a tau that is right to one rounding. For alpha > 2, f is infinitely steep below
// each key.
template <class T>
double residual_bound(double alpha) {
  if (alpha <= 2) return 100 * kEpsilon<T>;
  return 4 * std::pow(kEpsilon<T>, 1 / (alpha - 1));
}

}  // namespace splash::cpu_ref::testing
