// Newton from the left, warm starts, and the short lists of the attention path.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include "cpu_ref/entmax/newton.h"
#include "cpu_ref/tests/entmax_rows.h"

namespace splash::cpu_ref {
namespace {

using namespace testing;

template <class T>
double tolerance(T offset) {
  return 8 * kEpsilon<T> * std::abs(static_cast<double>(offset));
}

TEST_CASE_TEMPLATE("Newton's iterates rise and are lower bounds of tau", T, float, double) {
  for (const double alpha : {1.05, 1.2, 1.5, kGolden, 2.0})
    for (const double variance : {0.01, 0.3, 1.0}) {
      CAPTURE(alpha);
      CAPTURE(variance);
      const auto z = gaussian_row<T>(21, 3000, variance, alpha);
      const auto exact = solve(Solver::newton, z, alpha);
      REQUIRE(exact.iterations >= 2);
      REQUIRE(exact.iterations < 40);
      T last = -1;
      for (int k = 1; k <= exact.iterations; ++k) {
        const auto row = solve(Solver::newton, z, alpha, {.max_iterations = k});
        CHECK(row.iterations == k);
        CHECK(row.offset > last);
        CHECK(f_at(z, alpha, row.offset - tolerance(row.offset)) >= 0);
        last = row.offset;
      }
      CHECK(last == exact.offset);
    }
}

TEST_CASE_TEMPLATE("warm starts, in the bracket and out of it, change nothing but the count", T, float,
                   double) {
  for (const double alpha : {1.05, 1.2, 1.5, kGolden, 2.0, 2.5, 4.0})
    for (const double variance : {0.01, 1.0, 100.0}) {
      const auto z = gaussian_row<T>(22, 500, variance, alpha);
      const auto exact = solve(Solver::bisection, z, alpha);
      std::vector<double> starts{-kInfinity<double>, -1e9,        -1.5, 0, 1e-9, 3, 1e30,
                                 kInfinity<double>,  kNan<double>};
      for (int i = 0; i <= 64; ++i) starts.push_back(-1 + i / 64.0);
      for (const Solver solver : {Solver::newton, Solver::halley_bisection}) {
        if (!supports_alpha(solver, alpha)) continue;
        for (const double start : starts) {
          CAPTURE(alpha);
          CAPTURE(start);
          CAPTURE(to_string(solver));
          const auto row = solve(solver, z, alpha, {.start = &start});
          CHECK(std::abs(row.offset - exact.offset) <= 64 * kEpsilon<T> * std::abs(exact.offset));
          CHECK(row.iterations < 60);
          CHECK(row.residual <= residual_bound<T>(alpha));
        }
        const double answer = exact.offset;
        CHECK(solve(solver, z, alpha, {.start = &answer}).iterations <= (alpha <= 2 ? 3 : 40));
      }
    }
}

TEST_CASE("a start right of the root first steps left of it") {
  const auto z = gaussian_row<double>(23, 500, 1, 1.5);
  const double tau = solve(Solver::bisection, z, 1.5).offset;
  for (const double start : {tau + 1e-6, tau + 0.01, -0.05}) {
    const auto row = solve(Solver::newton, z, 1.5, {.max_iterations = 1, .start = &start});
    CHECK(row.offset < tau);
    CHECK(row.offset >= -1);
    CHECK(f_at(z, 1.5, row.offset) > 0);
  }
}

TEST_CASE_TEMPLATE("Halley-bisection does not stick next to a key, where f has a kink", T, float, double) {
  const std::vector<T> z{0, T(-0.3), T(-0.31), T(-0.9), T(-0.3)};
  for (const double alpha : {1.75, 1.99, 2.5, 4.0, 10.0}) {
    for (const T key : z)
      for (const T side : {T(-2), T(2)}) {
        const double start = std::nextafter(key, side);
        CAPTURE(start);
        CAPTURE(alpha);
        const auto row = solve(Solver::halley_bisection, z, alpha, {.start = &start});
        CHECK(is_root(z, alpha, row.offset, 64));
        CHECK(row.iterations < (alpha <= 2 ? 20 : 60));
      }
  }
}

TEST_CASE("Halley-bisection does not stick where its derivatives overflow") {
  // 5000 equal keys, alpha = 50: tau = -5000^-49, where f'' exceeds the largest double. The rounding of the
  // exponent alone moves the root by some 1e4 roundings.
  const std::vector<double> z(5000, 1.0);
  CHECK(is_root(z, 50.0, solve(Solver::bisection, z, 50).offset, 1e5));
  CHECK(is_root(z, 50.0, solve(Solver::halley_bisection, z, 50).offset, 1e5));
}

TEST_CASE_TEMPLATE("newton_refine solves short lists without the row's maximum", T, float, double) {
  for (const double alpha : {1.2, 1.5, kGolden, 2.0}) {
    CAPTURE(alpha);
    const auto z = gaussian_row<T>(24, 2000, 1, alpha);
    const auto row = solve(Solver::bisection, z, alpha);
    const int64_t n = static_cast<int64_t>(z.size());

    // Any subset has a lower threshold; only the support has the row's.
    T bound = -4;  // the first keys lack the maximum, so their threshold is below -1
    for (int64_t kept = 50; kept <= n; kept += 150) {
      const auto part = newton_refine(z.data(), kept, row.max, bound, alpha);
      CHECK(part.offset >= bound - tolerance(bound));
      CHECK(part.offset <= row.offset + tolerance(row.offset));
      bound = part.offset;
    }
    std::vector<T> support;
    for (const T value : z)
      if (value - row.max > row.offset) support.push_back(value);
    REQUIRE(support.size() < z.size());
    const int64_t size = static_cast<int64_t>(support.size());
    const auto refined = newton_refine(support.data(), size, row.max, bound, alpha);
    CHECK(std::abs(refined.offset - row.offset) <= tolerance(row.offset));
    CHECK(refined.sums.support == size);

    // Another origin, and a start above every key.
    const T origin = row.max + T(0.5);
    const auto moved = newton_refine(support.data(), size, origin, T(7), alpha);
    CHECK(std::abs(moved.offset + 0.5 - row.offset) <= 8 * kEpsilon<T>);
    CHECK(newton_refine(support.data(), 0, row.max, T(-0.25), alpha).offset == T(-0.25));
    CHECK(newton_refine(z.data(), n, row.max, T(-1), alpha, 2).iterations == 2);
  }
}

}  // namespace
}  // namespace splash::cpu_ref
