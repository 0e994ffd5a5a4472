#pragma once
// PyTorch's dense attention on the GPU: experiments/peers/torch_gpu_attention.py, one process for a whole
// run, timed as our own kernels are.

#include <string>
#include <vector>

#include "core/tensor.h"
#include "gpu/benchmark/timing.h"

namespace splash::experiments {

struct TorchGpuJob {
  std::string backend;  // one of torch_gpu_backends()
  std::string dtype;
  bool causal = false;
  gpu::TimingOptions timing{};
  std::string inputs_key;  // equal keys: equal inputs, which then are not sent again
};

struct TorchGpuResult {
  std::string unavailable;  // why it could not run; empty where it did
  std::string version;
  std::vector<double> seconds;
  double peak_memory_bytes = 0;  // beyond q, k, v, output included
  Tensor<float> out;
};

// cudnn, flash, efficient: fused kernels; math: cuBLAS and a softmax that stores the scores; math-tf32: the
// same with tf32 products.
const std::vector<std::string>& torch_gpu_backends();

// Runs with $SPLASH_PEER_PYTHON, else $SPLASH_PYTHON, else python3. A missing PyTorch, or a backend that does
// not take the problem, is no error: the result says so. Throws Error where the peer fails in another way.
TorchGpuResult run_torch_gpu_peer(const TorchGpuJob& job, const AttentionInputs<float>& inputs);

}  // namespace splash::experiments
