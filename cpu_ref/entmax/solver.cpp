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
#include "cpu_ref/entmax/evaluate.h"
#include "cpu_ref/entmax/halley_bisection.h"
#include "cpu_ref/entmax/histogram.h"
#include "cpu_ref/entmax/newton.h"
#include "cpu_ref/entmax/sorting.h"
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
  require_entmax_alpha(alpha);
  require_options(options);
  if (!supports_alpha(solver, alpha))
    throw Unsupported(fmt::format(
        "the {} solver takes {}, not alpha = {}; bisection and halley_bisection take it", to_string(solver),
        solver == Solver::sorting ? "alpha = 1.5 and 2" : "alpha <= 2", alpha));
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  constexpr T kNan = std::numeric_limits<T>::quiet_NaN();
  const RowScan<T> scan = scan_row(z);
  if (scan.poisoned) return {kNan, kNan, 0, 0, kNan};
  if (scan.empty()) return {0, kInfinity, 0, 0, 0};
  switch (solver) {
    case Solver::bisection:
      return solve_bisection(z, scan.max, alpha, options);
    case Solver::sorting:
      return solve_sorting(z, scan.max, alpha);
    case Solver::newton:
      return solve_newton(z, scan.max, alpha, options);
    case Solver::halley_bisection:
      return solve_halley_bisection(z, scan.max, alpha, options);
    case Solver::histogram:
      return solve_histogram(z, scan.max, alpha, options);
  }
  throw InvalidArgument(fmt::format("there is no solver number {}", static_cast<int>(solver)));
}

template <class T>
void entmax_probabilities(std::span<const T> z, double alpha, const RowSolution<T>& solution,
                          std::span<T> p) {
  require_entmax_alpha(alpha);
  if (z.size() != p.size())
    throw InvalidArgument(
        fmt::format("entmax_probabilities got {} scores and room for {} probabilities; they must match",
                    z.size(), p.size()));
  if (std::isnan(solution.offset)) {
    std::ranges::fill(p, solution.offset);
    return;
  }
  std::ranges::transform(z, p.begin(), [&](T value) {
    const T d = value - solution.max - solution.offset;
    return d > 0 ? entmax_power(d, alpha) : T(0);
  });
}

EntmaxRow entmax(std::span<const double> scores, double alpha, Solver solver, const SolverOptions& options) {
  std::vector<double> p(scores.begin(), scores.end());
  for (double& value : p) value *= alpha - 1;
  const auto solution = solve_tau<double>(solver, p, alpha, options);
  entmax_probabilities<double>(p, alpha, solution, p);
  return {std::move(p), solution.tau(), solution.support, solution.iterations, solution.residual};
}

template RowSolution<float> solve_tau(Solver, std::span<const float>, double, const SolverOptions&);
template RowSolution<double> solve_tau(Solver, std::span<const double>, double, const SolverOptions&);
template void entmax_probabilities(std::span<const float>, double, const RowSolution<float>&,
                                   std::span<float>);
template void entmax_probabilities(std::span<const double>, double, const RowSolution<double>&,
                                   std::span<double>);

}  // namespace splash::cpu_ref
