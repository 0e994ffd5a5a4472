// f, f' and f'' of a row against sums written out in long double.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include "cpu_ref/entmax/evaluate.h"
#include "cpu_ref/tests/entmax_rows.h"

namespace splash::cpu_ref {
namespace {

using namespace testing;

TEST_CASE_TEMPLATE("sums over the support, short rows and long ones", T, float, double) {
  for (const double alpha : {1.05, 1.2, 1.5, kGolden, 2.0, 2.5, 4.0})
    for (const int64_t n : {0, 1, 5, 255, 256, 257, 5000}) {
      auto z = gaussian_row<T>(50, n, 1, alpha);
      for (int64_t j = 0; j < n; j += 4) z[j] = -kInfinity<T>;
      const T max = T(0.25), offset = T(-0.5);
      const long double beta = 1 / (static_cast<long double>(alpha) - 1);
      long double mass = 0, slope = 0, curvature = 0;
      int64_t support = 0;
      for (const T value : z) {
        const long double d = static_cast<T>(static_cast<T>(value - max) - offset);
        if (!(d > 0)) continue;
        mass += std::pow(d, beta);
        slope += beta * std::pow(d, beta - 1);
        curvature += beta * (beta - 1) * std::pow(d, beta - 2);
        support += static_cast<T>(std::pow(d, beta)) > 0;
      }
      CAPTURE(alpha);
      CAPTURE(n);
      const RowSums sums = evaluate(z.data(), n, max, offset, alpha);
      const double epsilon = 100 * kEpsilon<T>;
      CHECK(std::abs(sums.mass - mass) <= epsilon * mass);
      CHECK(std::abs(sums.slope - slope) <= epsilon * slope);
      CHECK(std::abs(sums.curvature - curvature) <= epsilon * std::abs(curvature));
      CHECK(sums.support == support);
    }
}

TEST_CASE("a float sum over a million keys keeps float precision") {
  const std::vector<float> z(1 << 20, 0.1f);
  const double d = static_cast<double>(0.1f - -1.0f);
  CHECK(evaluate(z.data(), 1 << 20, 0.0f, -1.0f, 2).mass == doctest::Approx(0x1p20 * d).epsilon(2e-5));
  CHECK(evaluate(z.data(), 1 << 20, 0.0f, -1.0f, 1.5).mass == doctest::Approx(0x1p20 * d * d).epsilon(2e-5));
}

TEST_CASE("the bracket's upper end") {
  CHECK(bracket_high<double>(4, 1.5) == -0.5);
  CHECK(bracket_high<double>(1, 1.2) == -1);
  CHECK(bracket_high<float>(10, 3) == doctest::Approx(-0.01));
}

}  // namespace
}  // namespace splash::cpu_ref
