#include "gpu/benchmark/profile.h"

#include <cuda_profiler_api.h>

#include "gpu/cuda_check.h"

namespace splash::gpu {

void profile_call(const std::function<void()>& enqueue, const Stream& stream) {
  const DeviceScope scope(stream.device());
  enqueue();
  stream.synchronize();
  check_cuda(cudaProfilerStart(), "start the profiler");
  enqueue();
  stream.synchronize();
  check_cuda(cudaProfilerStop(), "stop the profiler");
}

}  // namespace splash::gpu
