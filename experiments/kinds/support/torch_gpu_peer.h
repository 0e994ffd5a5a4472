#pragma once
// PyTorch's dense attention, AdaSplash, and entmax of rows in either, on the GPU: experiments/peers/
// torch_gpu_*.py, a process each for a whole run, timed as our own kernels are.

#include <optional>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "gpu/benchmark/timing.h"

namespace splash::experiments {

struct TorchGpuJob {
  std::string backend;  // one of torch_gpu_backends()
  std::string dtype;
  bool causal = false;
  std::optional<double> alpha{};  // of entmax; none: softmax. Each backend computes one of the two
  std::optional<double> scale{};  // none: 1/sqrt(head_dim)
  gpu::TimingOptions timing{};
  std::string inputs_key;  // equal keys: equal inputs, which then are not sent again
};

struct TorchGpuResult {
  std::string unavailable;  // why it could not run; empty where it did
  std::string version;
  std::vector<double> seconds;
  double peak_memory_bytes = 0;  // beyond q, k, v and d_out; the output and the gradients included
  Tensor<float> out;
  Tensor<float> d_q;  // where there was a d_out
};

struct TorchGpuRowsJob {
  std::string backend;  // one of torch_gpu_rows_backends()
  std::string dtype;
  double alpha = 1.5;
  gpu::TimingOptions timing{};
  std::string inputs_key;  // equal keys: equal scores, which then are not sent again
};

// cudnn, flash, efficient: fused kernels; math: cuBLAS and a softmax that stores the scores; math-tf32: the
// same with tf32 products. adasplash, adasplash2: exact entmax in Triton (arXiv 2502.12082, 2604.15180).
// splash: this project's own Python package, called as its users call it.
const std::vector<std::string>& torch_gpu_backends();
bool is_entmax_backend(const std::string& backend);

// bisection: PyPI's entmax, 23 halvings; adasplash: Halley and bisection, of version 1; adasplash2:
// version 2.
const std::vector<std::string>& torch_gpu_rows_backends();

// One call is forward, or, where there is a d_out, forward and the gradients of q, k and v.
// Runs with $SPLASH_PEER_PYTHON, else $SPLASH_PYTHON, else python3. A missing package, or a backend that does
// not take the problem, is no error: the result says so. Throws Error where the peer fails in another way.
TorchGpuResult run_torch_gpu_peer(const TorchGpuJob& job, const AttentionInputs<float>& inputs,
                                  const Tensor<float>* d_out = nullptr);

// One call is entmax of each row of scores, [1, 1, rows, n]; so is the result's out. The rest as above.
TorchGpuResult run_torch_gpu_rows(const TorchGpuRowsJob& job, const Tensor<float>& scores);

}  // namespace splash::experiments
