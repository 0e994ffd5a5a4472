// Tests that the measured ceilings are plausible.

#include "experiments/runner/ceilings.h"

#include <chrono>
#include <cmath>

#include "core/error.h"
#include "gpu/tests/skip_without_gpu.h"

using namespace splash;
using namespace splash::experiments;

namespace {

double of(const std::string& name, const std::string& dtype = "") {
  for (const auto& ceiling : measured_ceilings()) {
    if (ceiling.name == name && ceiling.dtype == dtype) return ceiling.measured;
  }
  FAIL("no ceiling ", name, " ", dtype);
  return 0;
}

}  // namespace

TEST_CASE("every ceiling has an interval around it and is not above the data sheet") {
  SKIP_WITHOUT_GPU();
  const auto start = std::chrono::steady_clock::now();
  const auto& ceilings = measured_ceilings();
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(6));
  CHECK(ceilings.size() == 12);
  for (const auto& ceiling : ceilings) {
    CAPTURE(ceiling.name);
    CAPTURE(ceiling.dtype);
    CAPTURE(ceiling.method);
    if (std::isnan(ceiling.measured)) {
      CHECK(ceiling.method.find("not measured: ") == 0);
      continue;
    }
    CHECK(ceiling.low > 0);
    CHECK(ceiling.low <= ceiling.measured);
    CHECK(ceiling.measured <= ceiling.high);
    CHECK(ceiling.high < 1.2 * ceiling.low);
    if (!std::isnan(ceiling.datasheet)) {
      CHECK(ceiling.measured <= 1.05 * ceiling.datasheet);
      CHECK(ceiling.measured >= 0.5 * ceiling.datasheet);
    }
  }
}

TEST_CASE("ceilings stand in the order that the hardware has") {
  SKIP_WITHOUT_GPU();
  CHECK(of("l2 read") > 1.1 * of("dram read"));
  CHECK(of("shared read") > 1.5 * of("l2 read"));
  // 16 exponentials per clock and multiprocessor, and 128 multiply-adds (64 on compute capability 8.0).
  CHECK(of("exponentials") > of("fma", "float32") / 20);
  CHECK(of("exponentials") < of("fma", "float32") / 7);
  CHECK(of("tensor", "tf32") > of("fma", "float32"));
  CHECK(of("tensor", "float16") > 1.5 * of("tensor", "tf32"));
  CHECK(of("tensor", "bfloat16") / of("tensor", "float16") == doctest::Approx(1).epsilon(0.15));
  const double fp8 = of("tensor", "float8_e4m3");
  if (!std::isnan(fp8)) CHECK(fp8 > 1.4 * of("tensor", "float16"));
  CHECK(of("graph node") < of("launch"));
  CHECK(of("launch") > 1e-7);
  CHECK(of("launch") < 5e-5);
}

TEST_CASE("shared memory delivers 128 bytes a clock and multiprocessor, no more") {
  SKIP_WITHOUT_GPU();
  const auto device = gpu::list_devices().front();
  const double most = 128.0 * device.multiprocessors * device.clock_hz;
  CHECK(of("shared read") <= 1.02 * most);
  CHECK(of("shared read") >= 0.7 * most);
}

TEST_CASE("a device that does not exist has no ceilings") {
  SKIP_WITHOUT_GPU();
  CHECK_THROWS_AS(measured_ceilings(99), DeviceError);
}
