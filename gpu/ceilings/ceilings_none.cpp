// Ceilings in a build without CUDA: the call throws NotBuilt.

#include "gpu/ceilings/ceilings.h"
#include "gpu/no_device.h"

namespace splash::gpu {

std::vector<MeasuredCeiling> measure_ceilings(int /*device*/) {
  no_device();
}

}  // namespace splash::gpu
