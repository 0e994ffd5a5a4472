#pragma once
// A problem's tensors in the GPU's memory, and the timing of calls on them.

#include <functional>
#include <string>

#include "experiments/tuning/kernels.h"
#include "gpu/engine/tensor.h"

namespace splash::experiments {

struct DeviceProblem {
  explicit DeviceProblem(const TuneRequest& request);

  // Returns a function that times `call` with events: the median of three calls with a warm cache, in
  // seconds. The returned function may be used as long as this object lives.
  std::function<double()> timed(std::function<void()> call) const;
  SearchLimits limits(double budget_seconds) const;  // with the host's clock

  AttentionSpec spec;
  Dtype dtype;
  std::string inputs;  // described in words
  gpu::Stream stream;
  gpu::DeviceInfo device;
  AttentionInputs<float> host;
  gpu::DeviceTensor q, k, v, out;
};

}  // namespace splash::experiments
