#include "experiments/runner/ceilings.h"

#include <cmath>

#include <doctest/doctest.h>

using namespace splash;
using namespace splash::experiments;

TEST_CASE("a ceiling is a median with its interval, and a missing one stays missing") {
  gpu::MeasuredCeiling measured{"fma", "float32", "FLOP/s", "m", {}, 1.98e9};
  for (int i = 1; i <= 31; ++i) measured.samples.push_back(i);
  const auto ceiling = summarise(measured, 20);
  CHECK(ceiling.measured == 16);
  CHECK(ceiling.low < 16);
  CHECK(ceiling.high > 16);
  CHECK(ceiling.datasheet == 20);
  CHECK(ceiling.method == "m; median of 31, multiprocessors at 1980 MHz");
  measured.samples.clear();
  CHECK(std::isnan(summarise(measured, 20).measured));
  CHECK(summarise(measured, 20).method == "m");
}
