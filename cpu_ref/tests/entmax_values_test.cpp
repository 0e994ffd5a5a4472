// Values that are known in closed form, and limits.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include "cpu_ref/normalize/softmax.h"
#include "cpu_ref/tests/entmax_rows.h"

namespace splash::cpu_ref {
namespace {

using namespace testing;

void check_probabilities(const EntmaxRow& row, const std::vector<double>& expected) {
  REQUIRE(row.probabilities.size() == expected.size());
  for (size_t j = 0; j < expected.size(); ++j) {
    CAPTURE(j);
    CHECK(std::abs(row.probabilities[j] - expected[j]) < 1e-14);
    CHECK((row.probabilities[j] == 0) == (expected[j] == 0));
  }
}

TEST_CASE("sparsemax by hand") {
  for (const Solver solver : kSolvers) {
    CAPTURE(to_string(solver));
    const EntmaxRow clear = entmax(std::vector<double>{1, 2, 3}, 2, solver);
    check_probabilities(clear, {0, 0, 1});
    CHECK(clear.tau == 2);
    CHECK(clear.support == 1);
    CHECK(clear.residual == 0);
    check_probabilities(entmax(std::vector<double>{0.5, 0, -3}, 2, solver), {0.75, 0.25, 0});
    check_probabilities(entmax(std::vector<double>{1, 1, 0}, 2, solver), {0.5, 0.5, 0});
    // Three of four: tau = (0.9 + 0.7 + 0.6 - 1) / 3 = 0.4.
    check_probabilities(entmax(std::vector<double>{0.7, 0.1, 0.9, 0.6}, 2, solver), {0.3, 0, 0.5, 0.2});
  }
}

TEST_CASE("two keys, alpha = 1.5: a^2 + (a - d)^2 = 1") {
  for (const double gap : {0.0, 0.3, 1.0, 1.9}) {
    CAPTURE(gap);
    const double d = gap / 2, a = (d + std::sqrt(2 - d * d)) / 2;
    for (const Solver solver : kSolvers)
      check_probabilities(entmax(std::vector<double>{0, gap}, 1.5, solver), {(a - d) * (a - d), a * a});
  }
  check_probabilities(entmax(std::vector<double>{-1, 1.5}, 1.5), {0, 1});  // d = 1.25 > 1
}

TEST_CASE("two keys, alpha = 3: sqrt(a) + sqrt(a - d) = 1") {
  for (const double gap : {0.0, 0.1, 0.4}) {
    const double d = 2 * gap;
    for (const Solver solver : {Solver::bisection, Solver::halley_bisection})
      check_probabilities(entmax(std::vector<double>{gap, 0}, 3, solver), {(1 + d) / 2, (1 - d) / 2});
  }
}

TEST_CASE("one key takes all") {
  for (const double alpha : {1.05, 1.5, kGolden, 2.0, 4.0})
    for (const Solver solver : kSolvers) {
      if (!supports_alpha(solver, alpha)) continue;
      const EntmaxRow row = entmax(std::vector<double>{-7.25}, alpha, solver);
      check_probabilities(row, {1});
      CHECK(row.tau == doctest::Approx((alpha - 1) * -7.25 - 1).epsilon(1e-14));
    }
}

TEST_CASE("equal keys share equally") {
  for (const double alpha : {1.05, 1.2, 1.5, kGolden, 2.0, 2.5, 4.0})
    for (const Solver solver : kSolvers) {
      if (!supports_alpha(solver, alpha)) continue;
      CAPTURE(alpha);
      CAPTURE(to_string(solver));
      for (const int64_t n : {2, 3, 100, 4097}) {
        const EntmaxRow row = entmax(std::vector<double>(n, 3.5), alpha, solver);
        CHECK(row.support == n);
        const double share = 1.0 / static_cast<double>(n);
        CHECK(row.probabilities.front() == doctest::Approx(share).epsilon(1e-13));
        CHECK(row.probabilities.back() == row.probabilities.front());
      }
      const EntmaxRow maxima = entmax(std::vector<double>{40, -90, 40, -100}, alpha, solver);
      CHECK(maxima.support == 2);
      CHECK(maxima.probabilities[0] == doctest::Approx(0.5).epsilon(1e-13));
      CHECK(maxima.probabilities[2] == maxima.probabilities[0]);
    }
}

TEST_CASE("the upper end of the bracket is found exactly") {
  for (const double alpha : {1.5, 2.0})
    for (const Solver solver : {Solver::bisection, Solver::sorting, Solver::halley_bisection}) {
      const EntmaxRow row = entmax(std::vector<double>(4, 0.0), alpha, solver);
      CHECK(row.tau == -std::pow(4, 1 - alpha));
      CHECK(row.residual == 0);
    }
}

TEST_CASE("a million equal keys in float keep their sum") {
  const std::vector<float> z(1 << 20, 0.25f);
  for (const Solver solver : kSolvers) {
    const auto row = solve(solver, z, 1.5);
    CHECK(row.offset == doctest::Approx(-0x1p-10).epsilon(1e-6));
    CHECK(row.support == 1 << 20);
    CHECK(row.residual < 1e-5);
  }
}

TEST_CASE("huge logits lose nothing") {
  // Multiples of 1/64 below 2, so that adding 2^20 is exact in double.
  const CounterRandom random(11);
  std::vector<double> scores(200), shifted(200);
  for (size_t j = 0; j < scores.size(); ++j) {
    scores[j] = std::floor(128 * random.uniform(j)) / 64;
    shifted[j] = scores[j] + 0x1p20;
  }
  for (const double alpha : {1.5, 2.0, 3.0})
    for (const Solver solver : kSolvers) {
      if (!supports_alpha(solver, alpha)) continue;
      CHECK(entmax(shifted, alpha, solver).probabilities == entmax(scores, alpha, solver).probabilities);
    }
  for (double& score : scores) score *= 1e6;
  scores[17] = 1e7;
  for (const Solver solver : kSolvers) {
    const EntmaxRow row = entmax(scores, 1.5, solver);
    CHECK(row.support == 1);
    CHECK(row.probabilities[17] == 1);
  }
}

TEST_CASE("alpha -> 1 approaches softmax") {
  const CounterRandom random(12);
  std::vector<double> scores(50), softmax(50);
  for (size_t j = 0; j < scores.size(); ++j) scores[j] = 2 * random.normal(j);
  softmax_row<double>(scores, softmax);
  const auto error = [&](double alpha, Solver solver) {
    const EntmaxRow row = entmax(scores, alpha, solver);
    double largest = 0;
    for (size_t j = 0; j < scores.size(); ++j)
      largest = std::max(largest, std::abs(row.probabilities[j] - softmax[j]));
    return largest;
  };
  for (const Solver solver :
       {Solver::bisection, Solver::newton, Solver::halley_bisection, Solver::histogram}) {
    CHECK(error(1.001, solver) < 2e-3);
    CHECK(error(1.001, solver) > 1e-6);
    CHECK(error(1.0001, solver) == doctest::Approx(error(1.001, solver) / 10).epsilon(0.05));
  }
}

}  // namespace
}  // namespace splash::cpu_ref
