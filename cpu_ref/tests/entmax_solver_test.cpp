// The solvers' interface: names, checks, and rows without an ordinary answer.

#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "core/error.h"
#include "core/normalizer.h"
#include "cpu_ref/tests/entmax_rows.h"

namespace splash::cpu_ref {
namespace {

using namespace testing;

const std::vector<double> kRow{0.5, 1, -2};

TEST_CASE("solver names are read back") {
  for (const Solver solver : kSolvers) CHECK(solver_from_string(to_string(solver)) == solver);
  CHECK(to_string(Solver::halley_bisection) == "halley_bisection");
  CHECK_THROWS_AS(solver_from_string("halley"), InvalidArgument);
  try {
    solver_from_string("brent");
  } catch (const InvalidArgument& error) {
    CHECK(std::string(error.what()).find("newton") != std::string::npos);  // names what is allowed
  }
}

TEST_CASE("alpha out of range is an invalid argument for every solver") {
  for (const Solver solver : kSolvers)
    for (const double alpha :
         {1.0, 1 + 9e-7, 64.001, 1e308, 0.5, 0.0, -2.0, kNan<double>, kInfinity<double>}) {
      CHECK_FALSE(supports_alpha(solver, alpha));
      CHECK_THROWS_AS(solve(solver, kRow, alpha), InvalidArgument);
      CHECK_THROWS_AS(entmax(kRow, alpha, solver), InvalidArgument);
      CHECK_THROWS_AS(solve(solver, std::vector<double>{}, alpha), InvalidArgument);
    }
}

TEST_CASE("an alpha that the solver does not take is unsupported") {
  CHECK_THROWS_AS(solve(Solver::sorting, kRow, 1.3), Unsupported);
  CHECK_THROWS_AS(solve(Solver::sorting, kRow, 3), Unsupported);
  CHECK_THROWS_AS(solve(Solver::newton, kRow, 2.01), Unsupported);
  CHECK_THROWS_AS(solve(Solver::histogram, kRow, 4), Unsupported);
  CHECK(supports_alpha(Solver::sorting, 1.5));
  CHECK(supports_alpha(Solver::newton, 1.01));
  CHECK(supports_alpha(Solver::bisection, 17));
  CHECK(supports_alpha(Solver::halley_bisection, 17));
}

TEST_CASE("options and lengths are checked") {
  CHECK_THROWS_AS(solve(Solver::newton, kRow, 1.5, {.max_iterations = -1}), InvalidArgument);
  CHECK_THROWS_AS(solve(Solver::newton, kRow, 1.5, {.tolerance = -1e-3}), InvalidArgument);
  CHECK_THROWS_AS(solve(Solver::newton, kRow, 1.5, {.tolerance = kNan<double>}), InvalidArgument);
  CHECK_THROWS_AS(solve(Solver::histogram, kRow, 1.5, {.histogram_bins = 0}), InvalidArgument);
  std::vector<double> p(2);
  const auto row = solve(Solver::newton, kRow, 1.5);
  CHECK_THROWS_AS(entmax_probabilities<double>(kRow, 1.5, row, p), InvalidArgument);
}

TEST_CASE_TEMPLATE("a row without visible keys has tau = +inf and zero probabilities", T, float, double) {
  for (const Solver solver : kSolvers)
    for (const auto& z :
         {std::vector<T>{}, std::vector<T>(1, -kInfinity<T>), std::vector<T>(37, -kInfinity<T>)}) {
      const auto row = solve(solver, z, 1.5);
      CHECK(row.support == 0);
      CHECK(row.tau() == kInfinity<double>);
      CHECK(row.residual == 0);
      for (const T p : probabilities(z, 1.5, row)) CHECK(p == 0);
    }
}

TEST_CASE_TEMPLATE("NaN or +inf makes a NaN row", T, float, double) {
  for (const Solver solver : kSolvers)
    for (const T poison : {kNan<T>, kInfinity<T>})
      for (const size_t where : {0, 50, 99}) {
        auto z = gaussian_row<T>(31, 100, 1, 2);
        z[where == 0 ? 1 : 0] = -kInfinity<T>;
        z[where] = poison;
        const auto row = solve(solver, z, 2);
        CHECK(std::isnan(row.offset));
        CHECK(std::isnan(row.tau()));
        CHECK(std::isnan(row.residual));
        CHECK(row.support == 0);
        for (const T p : probabilities(z, 2, row)) CHECK(std::isnan(p));
      }
  const std::vector<T> alone{kNan<T>};
  CHECK(std::isnan(solve(Solver::bisection, alone, 4).offset));
}

TEST_CASE_TEMPLATE("extreme rows and alphas end", T, float, double) {
  const T huge = std::numeric_limits<T>::max(), tiny = std::numeric_limits<T>::denorm_min();
  const std::vector<std::vector<T>> rows{
      {huge, -huge}, {huge, huge}, {-huge, -huge, -huge}, {tiny, 0, -tiny}, std::vector<T>(1000, T(1))};
  for (const Solver solver : kSolvers)
    for (const double alpha : {kLeastAlpha, 1.0001, 1.5, 2.0, 50.0, kMostAlpha}) {
      if (!supports_alpha(solver, alpha)) continue;
      for (const auto& z : rows) {
        const auto row = solve(solver, z, alpha);
        CHECK(row.offset >= -1);
        CHECK(row.offset <= 0);
        CHECK(row.iterations <= 1200);
      }
    }
}

TEST_CASE_TEMPLATE("probabilities may overwrite the scores", T, float, double) {
  auto z = gaussian_row<T>(32, 300, 1, 1.5);
  const auto row = solve(Solver::newton, z, 1.5);
  const auto apart = probabilities(z, 1.5, row);
  entmax_probabilities<T>(std::span<const T>(z), 1.5, row, std::span<T>(z));
  CHECK(z == apart);
}

TEST_CASE("the calculator reports what it solved") {
  const EntmaxRow row = entmax(std::vector<double>{1, 2, 3}, 1.5);
  double sum = 0;
  for (const double p : row.probabilities) sum += p;
  CHECK(std::abs(sum - 1) < 1e-14);
  CHECK(row.support == 2);
  // d = 0.5: tau = 1.5 - (0.5 + sqrt(1.75)) / 2.
  CHECK(row.tau == doctest::Approx(1.5 - (0.5 + std::sqrt(1.75)) / 2).epsilon(1e-14));
  CHECK(row.residual < 1e-14);
  CHECK(row.iterations > 0);
}

}  // namespace
}  // namespace splash::cpu_ref
