#include "analysis/statistics.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include <doctest/doctest.h>

#include "core/error.h"

using namespace splash;
using namespace splash::analysis;

namespace {

std::vector<double> ranks(int64_t n) {
  std::vector<double> samples(static_cast<size_t>(n));
  std::iota(samples.begin(), samples.end(), 1.0);
  return samples;
}

// P(the k-th smallest <= median <= the (n+1-k)-th smallest), as a sum of binomial coefficients.
double coverage(int64_t n, int64_t k) {
  double sum = 0, coefficient = 1;
  for (int64_t below = 0; below <= n; ++below) {
    if (below >= k && below <= n - k) sum += coefficient;
    coefficient = coefficient * static_cast<double>(n - below) / static_cast<double>(below + 1);
  }
  return sum / std::pow(2.0, static_cast<double>(n));
}

}  // namespace

TEST_CASE("quantiles of known samples") {
  const std::vector<double> samples = {4, 1, 3, 2};
  CHECK(quantile(samples, 0) == 1);
  CHECK(quantile(samples, 1) == 4);
  CHECK(quantile(samples, 0.25) == doctest::Approx(1.75));  // numpy.quantile, R type 7
  CHECK(quantile(samples, 0.9) == doctest::Approx(3.7));
  CHECK(median(samples) == 2.5);
  CHECK(median(std::vector<double>{7}) == 7);
  CHECK(std::isnan(median({})));
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK(median(std::vector<double>{infinity, 1, infinity, infinity}) == infinity);
  CHECK_THROWS_AS(quantile(samples, 1.1), InvalidArgument);
  CHECK_THROWS_AS(quantile(samples, std::nan("")), InvalidArgument);
}

TEST_CASE("NaN samples are padding") {
  const double nan = std::nan("");
  CHECK(median(std::vector<double>{nan, 3, 1, nan, 2}) == 2);
  CHECK(std::isnan(median(std::vector<double>{nan, nan})));
  CHECK(median_interval(std::vector<double>{nan, 3, 1}).high == 3);
  CHECK(std::isnan(median_interval({}).low));
}

TEST_CASE("the median interval covers the median as often as it says, and is the narrowest that does") {
  for (const double confidence : {0.5, 0.9, 0.95, 0.99, 0.999}) {
    for (int64_t n = 1; n <= 60; ++n) {
      CAPTURE(confidence);
      CAPTURE(n);
      const Interval interval = median_interval(ranks(n), confidence);
      const auto k = static_cast<int64_t>(interval.low);
      CHECK(interval.high == static_cast<double>(n + 1 - k));
      if (n >= samples_needed(confidence)) {
        CHECK(coverage(n, k) >= confidence - 1e-12);
      } else {
        CHECK(k == 1);
        CHECK(coverage(n, k) < confidence);
      }
      if (2 * (k + 1) <= n + 1) CHECK(coverage(n, k + 1) < confidence);
    }
  }
}

TEST_CASE("known ranks of the median interval") {
  CHECK(samples_needed(0.95) == 6);
  CHECK(samples_needed(0.99) == 8);
  CHECK(samples_needed(1 - 2 / 64.0) == 6);  // exactly reached
  CHECK(median_interval(ranks(10)).low == 2);
  CHECK(median_interval(ranks(20)).low == 6);
  CHECK(median_interval(ranks(50)).low == 18);
  CHECK(median_interval(ranks(100)).low == 40);
  const Interval many = median_interval(ranks(100000));  // about n/2 - 0.98 sqrt(n)
  CHECK(many.low == doctest::Approx(50000 - 0.98 * std::sqrt(1e5)).epsilon(1e-4));
  CHECK_THROWS_AS(median_interval(ranks(3), 1), InvalidArgument);
  CHECK_THROWS_AS(samples_needed(0), InvalidArgument);
}

TEST_CASE("the median interval covers the median of a skewed distribution") {
  std::mt19937_64 generator(5);
  std::exponential_distribution<double> distribution(1);
  constexpr int kTrials = 4000;
  int covered = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> samples(25);
    for (double& sample : samples) sample = distribution(generator);
    const Interval interval = median_interval(samples);
    covered += interval.low <= std::log(2.0) && std::log(2.0) <= interval.high;
  }
  const double expected = coverage(25, 8);  // 0.957
  CHECK(covered / double(kTrials) == doctest::Approx(expected).epsilon(0.02));
}
