// The Jacobian of entmax and dL/dalpha near alpha = 1 and far above 2, against long double.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include "core/normalizer.h"
#include "cpu_ref/entmax/gradient.h"
#include "cpu_ref/entmax/rows.h"
#include "cpu_ref/tests/entmax_oracle.h"
#include "cpu_ref/tests/entmax_rows.h"

namespace splash::cpu_ref {
namespace {

using namespace testing;

using Wide = std::vector<long double>;

// sum weights * p, with the oracle's p.
long double loss(const Wide& scores, long double alpha, const std::vector<double>& weights) {
  const Oracle oracle(scores, alpha - 1, alpha);
  long double sum = 0;
  for (size_t j = 0; j < scores.size(); ++j) sum += weights[j] * oracle(scores[j]);
  return sum;
}

struct Row {
  std::vector<double> scores, weights;

  Row(int64_t n, double spread) {
    const CounterRandom random(17);
    for (int64_t j = 0; j < n; ++j) {
      scores.push_back(spread * random.normal(j));
      weights.push_back(random.normal(100 + j));
    }
  }
  Wide wide() const { return {scores.begin(), scores.end()}; }
};

template <class T>
double gradients(const Row& row, double alpha, std::vector<T>& ds) {
  const std::vector<T> scores(row.scores.begin(), row.scores.end()),
      weights(row.weights.begin(), row.weights.end());
  std::vector<T> p(scores.size());
  ds.resize(scores.size());
  entmax_rows<T>(scores, std::vector<double>{alpha}, 1, p);
  return entmax_gradient<T>(alpha, p, weights, ds);
}

TEST_CASE_TEMPLATE("gradients near alpha = 1 and up to 8 are the central differences", T, float, double) {
  const double bound = std::is_same_v<T, float> ? 2e-5 : 1e-8;
  for (const double alpha : {kLeastAlpha, 1.00001, 1.001, 1.1, 1.24, 1.26, 1.5, 1.9, 2.0, 2.5, 4.0, 8.0}) {
    CAPTURE(alpha);
    // Above alpha = 2, scores are close to each other, so that changes of the support are far away.
    Row row(7, alpha <= 2 ? 0.3 : 0.3 * std::pow(7, 1 - alpha));
    for (double& score : row.scores) score = static_cast<T>(score);
    for (double& weight : row.weights) weight = static_cast<T>(weight);
    std::vector<T> ds;
    const double d_alpha = gradients<T>(row, alpha, ds);
    const long double h = alpha <= 2 ? 1e-5L : 1e-5L * std::pow(7.0L, 1 - alpha);
    const double steepness = std::pow(7, alpha - 2);  // order of magnitude of u
    for (size_t j = 0; j < ds.size(); ++j) {
      Wide up = row.wide(), down = up;
      up[j] += h;
      down[j] -= h;
      const long double difference =
          (loss(up, alpha, row.weights) - loss(down, alpha, row.weights)) / (2 * h);
      CHECK(std::abs(static_cast<double>(ds[j] - difference)) <= bound * std::max(1.0, steepness));
    }
    // A one-sided difference of second order next to alpha = 1.
    const long double step = 1e-4L;
    const long double difference =
        alpha - step > 1
            ? (loss(row.wide(), alpha + step, row.weights) - loss(row.wide(), alpha - step, row.weights)) /
                  (2 * step)
            : (4 * loss(row.wide(), alpha + step, row.weights) - 3 * loss(row.wide(), alpha, row.weights) -
               loss(row.wide(), alpha + 2 * step, row.weights)) /
                  (2 * step);
    CHECK(std::abs(static_cast<double>(d_alpha - difference)) <= 10 * std::max(bound, 1e-7));
  }
}

TEST_CASE_TEMPLATE("gradients of any row are finite, and those of scores add up to 0", T, float, double) {
  for (const int64_t n : {2, 3000})
    for (const std::string& pattern : kPatterns)
      for (const double alpha : {kLeastAlpha, 1.1, 1.5, 2.0, 3.0, 10.0, kMostAlpha}) {
        CAPTURE(pattern);
        CAPTURE(n);
        CAPTURE(alpha);
        const auto scores = hard_row<T>(pattern, n);
        std::vector<T> p(n), g(n), ds(n);
        const CounterRandom random(5);
        for (int64_t j = 0; j < n; ++j) g[j] = static_cast<T>(random.normal(j));
        entmax_rows<T>(scores, std::vector<double>{alpha}, 1, p);
        const double d_alpha = entmax_gradient<T>(alpha, p, g, ds);
        CHECK(std::isfinite(d_alpha));
        CHECK(std::ranges::all_of(ds, [](T value) { return std::isfinite(value); }));
        long double sum = 0, size = 0;
        for (const T value : ds) {
          sum += value;
          size += std::abs(static_cast<long double>(value));
        }
        if (size < 1e30L) CHECK(std::abs(sum) <= kEpsilon<T> * (100 + n) * size);
      }
}

TEST_CASE("the smallest probability outweighs the others by 10^32 and keeps its digits") {
  // alpha = 10: u = p^-8. The heavy key's ds is minus the other's, -(g_1 - g_0) u_0, to all digits.
  const std::vector<double> p{1 - 1e-4, 1e-4}, g{0.25, 1.75};
  std::vector<double> ds(2);
  entmax_gradient<double>(10, p, g, ds);
  const double expected = (g[0] - g[1]) * std::pow(p[0], -8);
  CHECK(ds[0] == doctest::Approx(expected).epsilon(1e-14));
  CHECK(ds[1] == doctest::Approx(-expected).epsilon(1e-14));
}

}  // namespace
}  // namespace splash::cpu_ref
