// Every solver against an independent f, and against the others, on random rows.

#include <cmath>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include "cpu_ref/tests/entmax_rows.h"

namespace splash::cpu_ref {
namespace {

using namespace testing;

constexpr double kRoundings = 64;  // the most roundings of tau by which a solver may be off

template <class T>
void check_row(const std::vector<T>& z, double alpha) {
  CAPTURE(alpha);
  CAPTURE(z.size());
  const RowSolution<T> reference = solve(Solver::bisection, z, alpha);
  for (const Solver solver : kSolvers) {
    if (!supports_alpha(solver, alpha)) continue;
    CAPTURE(to_string(solver));
    const RowSolution<T> row = solve(solver, z, alpha);
    CHECK(is_root(z, alpha, row.offset, kRoundings));
    CHECK(std::abs(row.offset - reference.offset) <= kRoundings * kEpsilon<T> * std::abs(reference.offset));
    CHECK(row.max == reference.max);
    CHECK(row.offset >= -1);
    CHECK(row.offset <= 0);
    CHECK(row.residual <= residual_bound<T>(alpha));

    const std::vector<T> p = probabilities(z, alpha, row);
    // This holds whatever the residual of the rounded tau is.
    CHECK(std::abs(total(p) - 1) <= kEpsilon<T> * (8 + 2 * std::sqrt(static_cast<double>(z.size()))));
    int64_t support = 0;
    for (const T value : p) support += value > 0;
    CHECK(row.support == support);
    CHECK(row.support >= 1);
  }
}

TEST_CASE_TEMPLATE("solvers find the root of f on random rows and agree", T, float, double) {
  uint64_t seed = 100;
  for (const double alpha : {1.05, 1.2, 1.5, kGolden, 2.0, 2.5, 4.0})
    for (const double variance : {0.01, 1.0, 100.0, 1e4})
      for (const int64_t n : {1, 2, 3, 7, 64, 255, 257, 1000, 5000})
        for (int repeat = 0; repeat < (n < 1000 ? 4 : 1); ++repeat) {
          CAPTURE(variance);
          check_row(gaussian_row<T>(++seed, n, variance, alpha), alpha);
        }
}

TEST_CASE_TEMPLATE("solvers agree on the sink row", T, float, double) {
  uint64_t seed = 9000;
  for (const double alpha : {1.2, 1.5, 2.0})
    for (const double gap : {0.5, 1.0, 1.5})
      for (const double sd : {0.1, 0.3}) check_row(sink_row<T>(++seed, 32768, gap, sd, alpha), alpha);
}

TEST_CASE_TEMPLATE("solvers agree where keys are masked", T, float, double) {
  for (const double alpha : {1.2, 1.5, 2.0, 4.0}) {
    std::vector<T> z = gaussian_row<T>(77, 300, 1, alpha);
    std::vector<T> visible;
    for (size_t j = 0; j < z.size(); ++j) {
      if (j % 3 == 0)
        visible.push_back(z[j]);
      else
        z[j] = -kInfinity<T>;
    }
    check_row(z, alpha);
    for (const Solver solver : kSolvers) {
      if (!supports_alpha(solver, alpha)) continue;
      const auto masked = solve(solver, z, alpha), alone = solve(solver, visible, alpha);
      CHECK(std::abs(masked.offset - alone.offset) <= kRoundings * kEpsilon<T>);
      CHECK(probabilities(z, alpha, masked)[1] == 0);
    }
  }
}

TEST_CASE("float and double agree on the same row") {
  for (const double alpha : {1.05, 1.5, 2.0, 4.0}) {
    const auto z = gaussian_row<float>(5, 4000, 6, alpha);
    const std::vector<double> wide(z.begin(), z.end());
    CHECK(std::abs(solve(Solver::bisection, z, alpha).tau() - solve(Solver::bisection, wide, alpha).tau()) <
          1e-6);
  }
}

TEST_CASE("Halley-bisection needs far fewer iterations than bisection (AdaSplash: 3 against 23)") {
  // n = 8192, N(0, 1), alpha = 1.5, float: over 200 rows the medians are 3 and 23.
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const auto z = gaussian_row<float>(seed, 8192, 1, 1.5);
    CHECK(solve(Solver::halley_bisection, z, 1.5).iterations <= 6);
    const int halvings = solve(Solver::bisection, z, 1.5).iterations;
    CHECK(halvings >= 20);
    CHECK(halvings <= 27);
  }
}

TEST_CASE("double bisection stands still after about 53 halvings") {
  const auto z = gaussian_row<double>(3, 1000, 1, 1.5);
  const auto row = solve(Solver::bisection, z, 1.5);
  CHECK(row.iterations >= 45);
  CHECK(row.iterations <= 60);
  CHECK(row.residual < 1e-14);
}

TEST_CASE("iteration limits and tolerances are kept") {
  const auto z = gaussian_row<double>(4, 1000, 1, 1.5);
  for (const Solver solver :
       {Solver::bisection, Solver::newton, Solver::halley_bisection, Solver::histogram}) {
    CAPTURE(to_string(solver));
    CHECK(solve(solver, z, 1.5, {.max_iterations = 2}).iterations == 2);
    CHECK(solve(solver, z, 1.5, {.max_iterations = 2}).residual > 1e-12);
    const auto loose = solve(solver, z, 1.5, {.tolerance = 1e-3});
    CHECK(loose.residual <= 1e-3);
    CHECK(loose.residual > 0);
    CHECK(loose.iterations < solve(solver, z, 1.5).iterations);
  }
}

}  // namespace
}  // namespace splash::cpu_ref
