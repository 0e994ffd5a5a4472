#include "core/dtype.h"

#include <cmath>

#include <doctest/doctest.h>

#include "core/error.h"

using namespace splash;

TEST_CASE("rounding goes to the nearest value, ties to even") {
  CHECK(round_to(Dtype::f64, 0.1) == 0.1);
  CHECK(round_to(Dtype::f32, 0.1) == 0.1f);
  CHECK(round_to(Dtype::bf16, 1.0 + 1.0 / 256) == 1.0);  // half way between 1 and 1 + 1/128
  CHECK(round_to(Dtype::bf16, 1.0 + 3.0 / 256) == 1.0 + 4.0 / 256);
  CHECK(round_to(Dtype::f16, 1.0 + 1.0 / 2048) == 1.0);
  CHECK(round_to(Dtype::f16, 70000.0) == INFINITY);
}

TEST_CASE("the unit roundoff bounds the relative rounding error, tightly") {
  for (const Dtype dtype : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
    double worst = 0;
    for (int i = 0; i < 5000; ++i) {
      const double x = 1.0 + i / 5000.0 + 1e-9;
      worst = std::max(worst, std::abs(round_to(dtype, x) - x) / x);
    }
    CHECK(worst <= unit_roundoff(dtype));
    CHECK(worst > 0.7 * unit_roundoff(dtype));
  }
}

TEST_CASE("names go both ways, and an unknown one is refused") {
  for (const Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::f16, Dtype::bf16}) {
    CHECK(dtype_from_string(to_string(dtype)) == dtype);
  }
  CHECK(bytes_of(Dtype::f64) == 8);
  CHECK(bytes_of(Dtype::bf16) == 2);
  CHECK_THROWS_AS(dtype_from_string("fp8"), InvalidArgument);
}
