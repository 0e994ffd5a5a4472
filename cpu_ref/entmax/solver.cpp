#include "cpu_ref/entmax/solver.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "core/normalizer.h"
#include "cpu_ref/entmax/bisection.h"
#include "cpu_ref/entmax/halley_bisection.h"
#include "cpu_ref/entmax/histogram.h"
#include "cpu_ref/entmax/newton.h"
#include "cpu_ref/entmax/sorting.h"
#include "cpu_ref/entmax/threshold.h"
#include "cpu_ref/normalize/row_scan.h"

namespace splash::cpu_ref {
namespace {

constexpr std::array<std::pair<Solver, std::string_view>, 5> kNames{
    {{Solver::bisection, "bisection"},
     {Solver::sorting, "sorting"},
     {Solver::newton, "newton"},
     {Solver::halley_bisection, "halley_bisection"},
     {Solver::histogram, "histogram"}}};

void require_options(const SolverOptions& options) {
  if (options.max_iterations < 0)
    throw InvalidArgument(fmt::format("max_iterations is {}; it must be >= 0", options.max_iterations));
  if (!(options.tolerance >= 0))
    throw InvalidArgument(fmt::format("tolerance is {}; it must be >= 0", options.tolerance));
  if (options.histogram_bins < 1)
    throw InvalidArgument(fmt::format("histogram_bins is {}; it must be >= 1", options.histogram_bins));
}

void require_solver_and_options(Solver solver, double alpha, const SolverOptions& options) {
  require_entmax_alpha(alpha);
  require_options(options);
  if (!supports_alpha(solver, alpha))
    throw Unsupported(fmt::format(
        "the {} solver takes {}, not alpha = {}; bisection and halley_bisection take it", to_string(solver),
        solver == Solver::sorting ? "alpha = 1.5 and 2" : "alpha <= 2", alpha));
}

void require_room(size_t scores, size_t room) {
  if (scores == room) return;
  throw InvalidArgument(
      fmt::format("there are {} scores and room for {} probabilities; they must match", scores, room));
}

// Solves a row that has a visible key and no NaN or +inf.
template <class T>
RowSolution<T> run_solver(Solver solver, std::span<const T> z, T max, double alpha,
                          const SolverOptions& options) {
  switch (solver) {
    case Solver::bisection:
      return solve_bisection(z, max, alpha, options);
    case Solver::sorting:
      return solve_sorting(z, max, alpha);
    case Solver::newton:
      return solve_newton(z, max, alpha, options);
    case Solver::halley_bisection:
      return solve_halley_bisection(z, max, alpha, options);
    case Solver::histogram:
      return solve_histogram(z, max, alpha, options);
  }
  throw InvalidArgument(fmt::format("there is no solver number {}", static_cast<int>(solver)));
}

// (alpha - 1) (s - max), which stays finite for huge scores, too.
template <class T>
void relative_row(std::span<const T> scores, T max, double alpha, std::span<T> z) {
  const auto factor = static_cast<T>(alpha - 1);
  std::ranges::transform(scores, z.begin(), [&](T s) { return factor * (s - max); });
}

}  // namespace

std::string_view to_string(Solver solver) {
  for (const auto& [value, name] : kNames)
    if (value == solver) return name;
  return "unknown";
}

Solver solver_from_string(std::string_view name) {
  std::string allowed;
  for (const auto& [value, text] : kNames) {
    if (text == name) return value;
    allowed += (allowed.empty() ? "" : ", ") + std::string(text);
  }
  throw InvalidArgument(fmt::format("there is no solver '{}'; it must be one of {}", name, allowed));
}

bool supports_alpha(Solver solver, double alpha) {
  if (!entmax_takes(alpha)) return false;
  switch (solver) {
    case Solver::sorting:
      return alpha == 1.5 || alpha == 2;
    case Solver::newton:
    case Solver::histogram:
      return alpha <= 2;
    case Solver::bisection:
    case Solver::halley_bisection:
      return true;
  }
  return false;
}

template <class T>
RowSolution<T> solve_tau(Solver solver, std::span<const T> z, double alpha, const SolverOptions& options) {
  require_solver_and_options(solver, alpha, options);
  constexpr T kNan = std::numeric_limits<T>::quiet_NaN();
  const RowScan<T> scan = scan_row(z);
  if (scan.poisoned) return {kNan, kNan, 0, 0, kNan};
  if (scan.empty()) return {0, std::numeric_limits<T>::infinity(), 0, 0, 0};
  return run_solver(solver, z, scan.max, alpha, options);
}

template <class T>
void entmax_probabilities(std::span<const T> z, double alpha, const RowSolution<T>& solution,
                          std::span<T> p) {
  require_entmax_alpha(alpha);
  require_room(z.size(), p.size());
  if (std::isnan(solution.offset) || std::isinf(solution.offset)) {
    std::ranges::fill(p, std::isnan(solution.offset) ? solution.offset : T(0));
    return;
  }
  std::vector<T> scratch(alpha > 2 ? z.size() : 0);
  settle<T>(z, solution.max, 1, alpha, -static_cast<double>(solution.offset), scratch).probabilities(z, p);
}

template <class T>
double entmax_row(Solver solver, std::span<const T> scores, double alpha, std::span<T> p,
                  const SolverOptions& options, int* iterations) {
  require_solver_and_options(solver, alpha, options);
  require_room(scores.size(), p.size());
  const RowScan<T> scan = scan_row(scores);
  if (iterations != nullptr) *iterations = 0;
  if (scan.poisoned || scan.empty()) {
    std::ranges::fill(p, scan.poisoned ? std::numeric_limits<T>::quiet_NaN() : T(0));
    return scan.poisoned ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
  }
  double start = std::numeric_limits<double>::quiet_NaN();
  if (alpha <= 2) {
    relative_row(scores, scan.max, alpha, p);
    const RowSolution<T> solution = run_solver<T>(solver, p, T(0), alpha, options);
    if (iterations != nullptr) *iterations = solution.iterations;
    start = -static_cast<double>(solution.offset);
  }
  const Threshold threshold = settle<T>(scores, scan.max, alpha - 1, alpha, start, p);
  threshold.probabilities<T>(scores, p);
  return threshold.tau();
}

EntmaxRow entmax(std::span<const double> scores, double alpha, Solver solver, const SolverOptions& options) {
  EntmaxRow row{.probabilities = std::vector<double>(scores.size())};
  row.tau = entmax_row<double>(solver, scores, alpha, row.probabilities, options, &row.iterations);
  if (alpha > 2 && std::isfinite(row.tau)) {  // the solver has not run yet
    std::vector<double> z(scores.size());
    relative_row<double>(scores, scan_row(scores).max, alpha, z);
    row.iterations = run_solver<double>(solver, z, 0, alpha, options).iterations;
  }
  double sum = 0;
  for (const double p : row.probabilities) {
    sum += p;
    row.support += p > 0 ? 1 : 0;
  }
  row.residual = std::isnan(sum) || row.support > 0 ? std::abs(sum - 1) : 0;
  return row;
}

template RowSolution<float> solve_tau(Solver, std::span<const float>, double, const SolverOptions&);
template RowSolution<double> solve_tau(Solver, std::span<const double>, double, const SolverOptions&);
template void entmax_probabilities(std::span<const float>, double, const RowSolution<float>&,
                                   std::span<float>);
template void entmax_probabilities(std::span<const double>, double, const RowSolution<double>&,
                                   std::span<double>);
template double entmax_row(Solver, std::span<const float>, double, std::span<float>, const SolverOptions&,
                           int*);
template double entmax_row(Solver, std::span<const double>, double, std::span<double>, const SolverOptions&,
                           int*);

}  // namespace splash::cpu_ref
