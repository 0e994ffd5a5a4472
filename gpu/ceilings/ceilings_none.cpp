// What a build without CUDA answers.

#include "core/error.h"
#include "gpu/ceilings/ceilings.h"
#include "gpu/device.h"

namespace splash::gpu {

std::vector<MeasuredCeiling> measure_ceilings(int /*device*/) {
  throw NotBuilt("no CUDA device: " + device_unavailable_reason());
}

}  // namespace splash::gpu
