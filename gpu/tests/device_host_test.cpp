// Tests that hold with and without a GPU, with and without CUDA in the build.

#include <doctest/doctest.h>

#include "core/error.h"
#include "gpu/device.h"
#include "gpu/selfcheck.h"

using namespace splash;

TEST_CASE("either there is a device or there is a reason") {
  CHECK(gpu::list_devices().empty() != gpu::device_unavailable_reason().empty());
}

TEST_CASE("a device that is not there is refused, by number or with the reason for none") {
  const auto devices = static_cast<int>(gpu::list_devices().size());
  for (const int index : {-1, devices}) {
    CAPTURE(index);
    std::string message;
    try {
      gpu::require_device(index);
    } catch (const DeviceError& error) {
      message = error.what();
    }
    const std::string expected =
        devices == 0 ? gpu::device_unavailable_reason() : "device " + std::to_string(index) + " is not there";
    CHECK(message.find(expected) != std::string::npos);
    CHECK_THROWS_AS(gpu::run_self_check(index), DeviceError);
  }
}

#if !SPLASH_HAVE_CUDA
TEST_CASE("a build without CUDA says so") {
  CHECK(gpu::device_unavailable_reason().find("this build has no CUDA") != std::string::npos);
}
#endif
