// The device in a build without CUDA: none is listed, and what needs one throws NotBuilt.

#include "core/error.h"
#include "gpu/device.h"
#include "gpu/selfcheck.h"

namespace splash::gpu {

std::vector<DeviceInfo> list_devices() {
  return {};
}

std::string device_unavailable_reason() {
  return "this build has no CUDA parts (no nvcc was found, or SPLASH_CUDA was OFF, when it was configured)";
}

void require_device(int /*index*/) {
  throw NotBuilt("no CUDA device: " + device_unavailable_reason());
}

SelfCheck run_self_check(int device) {
  require_device(device);
  return {};
}

}  // namespace splash::gpu
