#pragma once
// A problem's tensors in the GPU's memory, and how a call on them is timed.

#include <functional>
#include <string>

#include "experiments/tuning/kernels.h"
#include "gpu/engine/tensor.h"

namespace splash::experiments {

struct DeviceProblem {
  explicit DeviceProblem(const TuneRequest& request);

  // Seconds of one call, the median of three with a warm cache between events. The call must outlive it.
  std::function<double()> timed(std::function<void()> call) const;
  SearchLimits limits(double budget_seconds) const;  // on the host's clock

  AttentionSpec spec;
  Dtype dtype;
  std::string inputs;  // in words
  gpu::Stream stream;
  gpu::DeviceInfo device;
  AttentionInputs<float> host;
  gpu::DeviceTensor q, k, v, out;
};

}  // namespace splash::experiments
