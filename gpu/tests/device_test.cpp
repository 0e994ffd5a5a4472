#include "gpu/device.h"

#include "gpu/selfcheck.h"
#include "gpu/tests/skip_without_gpu.h"

using namespace splash;

TEST_CASE("every device is described") {
  SKIP_WITHOUT_GPU();
  int index = 0;
  for (const auto& device : gpu::list_devices()) {
    CAPTURE(device.name);
    CHECK(device.index == index++);
    CHECK_FALSE(device.name.empty());
    CHECK(device.compute_major >= 5);
    CHECK(device.multiprocessors > 0);
    CHECK(device.memory_bytes > int64_t{1} << 30);
    CHECK(device.l2_bytes > 0);
    CHECK(device.shared_bytes_per_block >= 48 * 1024);
    CHECK(device.shared_bytes_per_multiprocessor >= device.shared_bytes_per_block);
    CHECK(device.memory_bus_bits > 0);
    CHECK(device.clock_hz > 1e8);
    CHECK(device.clock_hz < 1e10);
    CHECK(device.memory_clock_hz > 1e8);
    CHECK(device.driver_version.find('.') != std::string::npos);
    CHECK(device.runtime_version.find('.') != std::string::npos);
  }
}

TEST_CASE("the first device can be used") {
  SKIP_WITHOUT_GPU();
  CHECK_NOTHROW(gpu::require_device());
}

TEST_CASE("the self-check passes, and no copy is faster than the memory bus") {
  SKIP_WITHOUT_GPU();
  for (const auto& device : gpu::list_devices()) {
    CAPTURE(device.name);
    const auto check = gpu::run_self_check(device.index);
    CHECK(check.elements > 0);
    CHECK(check.mismatches == 0);
    CHECK(check.guard_overwrites == 0);
    CHECK(check.passed());
    const double bus = 2 * device.memory_clock_hz * device.memory_bus_bits / 8;  // double data rate
    CHECK(check.copy_bytes_per_second > 0.05 * bus);
    CHECK(check.copy_bytes_per_second < 1.05 * bus);
  }
}
