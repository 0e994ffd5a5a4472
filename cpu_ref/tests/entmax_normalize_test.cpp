// Softmax and the power approximation, and the case in which the latter equals entmax.

#include <cmath>
#include <vector>

#include <doctest/doctest.h>

#include "core/error.h"
#include "cpu_ref/entmax/evaluate.h"
#include "cpu_ref/normalize/power.h"
#include "cpu_ref/normalize/softmax.h"
#include "cpu_ref/tests/entmax_rows.h"

namespace splash::cpu_ref {
namespace {

using namespace testing;

template <class T>
std::vector<T> softmax(const std::vector<T>& scores) {
  std::vector<T> p(scores.size());
  softmax_row<T>(scores, p);
  return p;
}

template <class T>
std::vector<T> power(const std::vector<T>& scores, double alpha, bool normalized) {
  std::vector<T> p(scores.size());
  power_row<T>(scores, alpha, normalized, p);
  return p;
}

TEST_CASE_TEMPLATE("softmax: values, huge scores, masked keys", T, float, double) {
  const T tolerance = static_cast<T>(4 * kEpsilon<T>);
  const auto p = softmax<T>({0, std::log(T(3)), -kInfinity<T>});
  CHECK(std::abs(p[0] - T(0.25)) <= tolerance);
  CHECK(std::abs(p[1] - T(0.75)) <= tolerance);
  CHECK(p[2] == 0);
  const auto huge = softmax<T>({1000000, 1000001, -1000000});
  CHECK(std::abs(huge[1] - 1 / (1 + std::exp(T(-1)))) <= tolerance);
  CHECK(huge[2] == 0);
  const auto row = gaussian_row<T>(41, 5000, 9, 2);
  CHECK(std::abs(total(softmax(row)) - 1) < 20 * kEpsilon<T>);
  auto in_place = row;
  softmax_row<T>(in_place, in_place);
  CHECK(in_place == softmax(row));
}

TEST_CASE_TEMPLATE("softmax: rows without an ordinary answer", T, float, double) {
  CHECK(softmax<T>({}).empty());
  for (const T p : softmax<T>({-kInfinity<T>, -kInfinity<T>})) CHECK(p == 0);
  for (const T poison : {kNan<T>, kInfinity<T>})
    for (const T p : softmax<T>({1, poison, -kInfinity<T>})) CHECK(std::isnan(p));
  std::vector<T> p(2);
  CHECK_THROWS_AS(softmax_row<T>(std::vector<T>(3), p), InvalidArgument);
}

TEST_CASE_TEMPLATE("power: values, normalised and as the source writes it", T, float, double) {
  const std::vector<T> scores{-3, 1, 2, 0, -kInfinity<T>};
  const auto raw = power<T>(scores, 2, false);
  const T expected[] = {0, 1, 4, 0, 0};
  for (int j = 0; j < 5; ++j) CHECK(raw[j] == expected[j]);
  const auto p = power<T>(scores, 2, true);
  CHECK(std::abs(p[1] - T(0.2)) <= 2 * kEpsilon<T>);
  CHECK(std::abs(p[2] - T(0.8)) <= 2 * kEpsilon<T>);
  CHECK(p[0] == 0);
  const auto half = power<T>({4, 9}, 0.5, true);
  CHECK(std::abs(half[0] - T(0.4)) <= 2 * kEpsilon<T>);
  const auto huge = power<T>({T(1e30), T(1e30)}, 4, true);  // 1e120 overflows a float
  CHECK(huge[0] == T(0.5));
}

TEST_CASE_TEMPLATE("power: rows without an ordinary answer", T, float, double) {
  CHECK(power<T>({}, 1.5, true).empty());
  for (const bool normalized : {true, false}) {
    for (const T p : power<T>({-1, 0, -kInfinity<T>}, 1.5, normalized)) CHECK(p == 0);
    for (const T poison : {kNan<T>, kInfinity<T>})
      for (const T p : power<T>({1, poison, -1}, 1.5, normalized)) CHECK(std::isnan(p));
  }
  CHECK_THROWS_AS(power<T>({1}, 0, true), InvalidArgument);
  CHECK_THROWS_AS(power<T>({1}, kNan<double>, true), InvalidArgument);
  std::vector<T> p(2);
  CHECK_THROWS_AS(power_row<T>(std::vector<T>(3), 1.5, true, p), InvalidArgument);
}

TEST_CASE("power has entmax's exponent only where alpha (alpha - 1) = 1") {
  const auto largest_difference = [](double alpha) {
    const auto z = gaussian_row<double>(42, 100, 1, alpha);
    const auto row = solve(Solver::bisection, z, alpha);
    const auto exact = probabilities(z, alpha, row);
    std::vector<double> above(z.size());  // z - tau: the power approximation's best case, told the threshold
    for (size_t j = 0; j < z.size(); ++j) above[j] = z[j] - row.max - row.offset;
    const auto approximate = power<double>(above, alpha, false);
    double largest = 0;
    for (size_t j = 0; j < z.size(); ++j) largest = std::max(largest, std::abs(approximate[j] - exact[j]));
    return largest;
  };
  CHECK(kGolden * (kGolden - 1) == doctest::Approx(1).epsilon(1e-15));
  CHECK(largest_difference(kGolden) < 1e-14);
  CHECK(largest_difference(1.5) > 1e-2);
  CHECK(largest_difference(2) > 1e-2);
}

}  // namespace
}  // namespace splash::cpu_ref
