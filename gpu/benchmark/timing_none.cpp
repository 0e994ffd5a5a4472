// Timing in a build without CUDA: the call throws NotBuilt.

#include "gpu/benchmark/timing.h"
#include "gpu/no_device.h"

namespace splash::gpu {

Timing time_on_device(const std::function<void()>& /*enqueue*/, const Stream& /*stream*/,
                      const TimingOptions& /*options*/) {
  no_device();
}

}  // namespace splash::gpu
