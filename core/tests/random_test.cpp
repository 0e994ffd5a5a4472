#include "core/random.h"

#include <doctest/doctest.h>

using namespace splash;

TEST_CASE("draws depend on seed and counter alone") {
  const CounterRandom a(7), b(7), c(8);
  CHECK(a.bits(3) == b.bits(3));
  CHECK(a.bits(3) != a.bits(4));
  CHECK(a.bits(3) != c.bits(3));
  CHECK(a.stream(0).bits(0) != a.stream(1).bits(0));
}

TEST_CASE("uniform and normal draws have the moments they should") {
  const CounterRandom random(1);
  const int n = 200000;
  double mean_u = 0, mean = 0, second = 0, fourth = 0, lag = 0, before = 0;
  for (int i = 0; i < n; ++i) {
    const double u = random.uniform(i);
    REQUIRE(u > 0);
    REQUIRE(u < 1);
    mean_u += u / n;
    const double x = random.normal(i);
    mean += x / n;
    second += x * x / n;
    fourth += x * x * x * x / n;
    lag += x * before / n;
    before = x;
  }
  CHECK(mean_u == doctest::Approx(0.5).epsilon(0.005));
  CHECK(std::abs(mean) < 0.01);
  CHECK(second == doctest::Approx(1).epsilon(0.02));
  CHECK(fourth == doctest::Approx(3).epsilon(0.05));
  CHECK(std::abs(lag) < 0.01);
}
