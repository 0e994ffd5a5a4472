#include "gpu/engine/runs.h"

#include "gpu/cuda_check.h"

namespace splash::gpu {

void copy_runs(std::span<const Runs> all, StreamHandle stream) {
  for (const Runs& runs : all) {
    if (runs.bytes == 0 || runs.count == 0) continue;
    check_cuda(cudaMemcpy2DAsync(runs.to, static_cast<size_t>(runs.to_apart), runs.from,
                                 static_cast<size_t>(runs.from_apart), static_cast<size_t>(runs.bytes),
                                 static_cast<size_t>(runs.count), cudaMemcpyDeviceToDevice, stream),
               "copy runs");
  }
}

}  // namespace splash::gpu
