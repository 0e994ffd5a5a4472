// entmax of a matrix's rows and its gradients, against the calculator and central differences.

#include "cpu_ref/tests/entmax_rows.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include "core/error.h"
#include "cpu_ref/entmax/rows.h"

namespace splash::cpu_ref {
namespace {

using namespace testing;

template <class T>
std::vector<T> forward(const std::vector<T>& scores, const std::vector<double>& alpha, int64_t rows) {
  std::vector<T> p(scores.size(), kNan<T>);
  entmax_rows<T>(scores, alpha, rows, p);
  return p;
}

// sum of weights * p, in double.
double weighted(const std::vector<double>& scores, const std::vector<double>& alpha, int64_t rows,
                const std::vector<double>& weights) {
  const auto p = forward(scores, alpha, rows);
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) sum += weights[i] * p[i];
  return sum;
}

TEST_CASE_TEMPLATE("rows: each is the calculator's", T, float, double) {
  const int64_t rows = 7, n = 37;
  const std::vector<double> alpha{1.05, 1.2, 1.5, 2.0, 2.5, 4.0, 1.9};
  std::vector<T> scores(rows * n);
  const CounterRandom random(5);
  for (int64_t i = 0; i < rows * n; ++i) scores[i] = static_cast<T>(3 * random.normal(i));
  scores[2 * n] = scores[2 * n + 1] = scores[2 * n + 2];  // ties
  for (int64_t j = 1; j < n; ++j) scores[3 * n + j] = -kInfinity<T>;
  const auto p = forward(scores, alpha, rows);
  for (int64_t r = 0; r < rows; ++r) {
    CAPTURE(r);
    const std::vector<double> row(scores.begin() + r * n, scores.begin() + (r + 1) * n);
    const EntmaxRow expected = entmax(row, alpha[r]);
    double sum = 0;
    for (int64_t j = 0; j < n; ++j) {
      CHECK(std::abs(p[r * n + j] - expected.probabilities[j]) <= kEpsilon<T>);
      sum += p[r * n + j];
    }
    CHECK(std::abs(sum - 1) <= 20 * kEpsilon<T>);
  }
}

TEST_CASE("rows: masked ones give zeros, NaN and infinity a NaN row") {
  const double inf = kInfinity<double>, nan = kNan<double>;
  const std::vector<double> scores{-inf, -inf, -inf, 1, nan, 0, inf, 0, 0, 5, 5, -inf};
  const auto p = forward(scores, {1.5}, 4);
  for (int j = 0; j < 3; ++j) {
    CHECK(p[j] == 0);
    CHECK(std::isnan(p[3 + j]));
    CHECK(std::isnan(p[6 + j]));
  }
  CHECK(p[9] == doctest::Approx(0.5));
  CHECK(p[11] == 0);
  std::vector<double> ds(12, 7), d_alpha(4, 7);
  entmax_rows_gradient<double>(p, std::vector<double>(12, 1.0), std::vector<double>{1.5}, 4, ds, d_alpha);
  CHECK(ds[0] == 0);
  CHECK(d_alpha[0] == 0);
  CHECK(std::isnan(ds[4]));
  CHECK(std::isnan(d_alpha[1]));
  CHECK(ds[9] == doctest::Approx(0));
}

TEST_CASE("rows: gradients are the central differences") {
  const int64_t rows = 5, n = 11;
  const std::vector<double> alpha{1.2, 1.5, 1.7, 2.0, 2.5};
  const CounterRandom random(9);
  std::vector<double> scores(rows * n), weights(rows * n);
  for (int64_t i = 0; i < rows * n; ++i) {
    scores[i] = random.normal(i);
    weights[i] = random.normal(1000 + i);
  }
  const auto p = forward(scores, alpha, rows);
  std::vector<double> ds(rows * n, 7), d_alpha(rows, 7);
  entmax_rows_gradient<double>(p, weights, alpha, rows, ds, d_alpha);
  const double h = 1e-6;
  for (int64_t i = 0; i < rows * n; ++i) {
    CAPTURE(i);
    auto up = scores, down = scores;
    up[i] += h;
    down[i] -= h;
    const double difference =
        (weighted(up, alpha, rows, weights) - weighted(down, alpha, rows, weights)) / (2 * h);
    CHECK(std::abs(ds[i] - difference) < 1e-7);
  }
  for (int64_t r = 0; r < rows; ++r) {
    CAPTURE(r);
    auto up = alpha, down = alpha;
    up[r] += h;
    down[r] -= h;
    const double difference =
        (weighted(scores, up, rows, weights) - weighted(scores, down, rows, weights)) / (2 * h);
    CHECK(std::abs(d_alpha[r] - difference) < 1e-6);
  }
}

TEST_CASE("rows: what does not fit is refused") {
  std::vector<double> p(6);
  const std::vector<double> scores(6);
  const auto run = [&](const std::vector<double>& alpha, int64_t rows) {
    entmax_rows<double>(scores, alpha, rows, p);
  };
  CHECK_THROWS_WITH_AS(run({1.5}, 4), "6 scores do not make 4 rows", InvalidArgument);
  CHECK_THROWS_WITH_AS(run({1.5, 1.5}, 3), "alpha has 2 entries; allowed: 1, or 3 (one a row)",
                       InvalidArgument);
  CHECK_THROWS_WITH_AS(run({1.0}, 3),
                       "alpha is 1; entmax takes 1.000001 to 64 (towards 1 it becomes softmax)",
                       InvalidArgument);
  CHECK_THROWS_AS(run({kNan<double>}, 3), InvalidArgument);
  p.resize(5);
  CHECK_THROWS_WITH_AS(run({1.5}, 3), "p has 5 entries; it must have 6", InvalidArgument);
}

}  // namespace
}  // namespace splash::cpu_ref
