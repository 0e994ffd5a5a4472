// The histogram lower bound: tau - 1/bins <= bound <= tau.

#include <algorithm>
#include <cmath>
#include <vector>

#include <doctest/doctest.h>

#include "cpu_ref/entmax/histogram.h"
#include "cpu_ref/tests/entmax_rows.h"

namespace splash::cpu_ref {
namespace {

using namespace testing;

template <class T>
void check_bound(const std::vector<T>& z, double alpha, int bins) {
  CAPTURE(alpha);
  CAPTURE(bins);
  const auto row = solve(Solver::bisection, z, alpha);
  const double bound = histogram_lower_bound<T>(z, row.max, alpha, bins);
  CHECK(bound >= -1);
  CHECK(bound <= row.offset + 8 * kEpsilon<T>);
  CHECK(bound >= row.offset - 1.0 / bins - 8 * kEpsilon<T>);
  CHECK(f_at(z, alpha, bound - 8 * kEpsilon<T>) >= 0);
}

TEST_CASE_TEMPLATE("the bound is a lower bound, within one bin", T, float, double) {
  uint64_t seed = 300;
  for (const double alpha : {1.05, 1.2, 1.5, kGolden, 2.0})
    for (const int bins : {1, 7, 16, 64, 100, 1000}) {
      for (const double variance : {0.01, 1.0, 100.0})
        check_bound(gaussian_row<T>(++seed, 700, variance, alpha), alpha, bins);
      check_bound(sink_row<T>(++seed, 8192, 1.0, 0.2, alpha), alpha, bins);
    }
}

TEST_CASE_TEMPLATE("keys on the edges of bins, and just under them", T, float, double) {
  for (const int bins : {3, 7, 10, 64})
    for (const double alpha : {1.2, 1.5, 2.0}) {
      std::vector<T> on{0}, under{0};
      for (int bin = 0; bin <= bins; ++bin) {
        on.push_back(static_cast<T>(static_cast<double>(bin) / bins - 1));
        under.push_back(std::nextafter(on.back(), T(-2)));
      }
      check_bound(on, alpha, bins);
      check_bound(under, alpha, bins);
    }
}

TEST_CASE("the bound is exact where every key is on an edge, and where keys tie at the maximum") {
  const std::vector<double> edges{0, -0.25, -0.25, -0.5, -2};
  const std::vector<double> ties(5, 0.0);
  for (const double alpha : {1.5, 2.0}) {
    CHECK(histogram_lower_bound<double>(edges, 0, alpha, 8) ==
          doctest::Approx(solve(Solver::sorting, edges, alpha).offset).epsilon(1e-14));
    CHECK(histogram_lower_bound<double>(ties, 0, alpha, 8) ==
          doctest::Approx(-std::pow(5, 1 - alpha)).epsilon(1e-14));
  }
}

TEST_CASE("starting from the bound saves Newton iterations") {
  int from_bound = 0, cold = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const auto z = gaussian_row<float>(seed, 8192, 1, 1.5);
    from_bound += solve(Solver::histogram, z, 1.5).iterations;
    cold += solve(Solver::newton, z, 1.5).iterations;
  }
  CHECK(from_bound < 0.7 * cold);
}

}  // namespace
}  // namespace splash::cpu_ref
