#pragma once
// Peers that run in Python and are timed in the same way as this project's own code:
// experiments/peers/torch_*.py.
//
// All run with $SPLASH_PEER_PYTHON, else $SPLASH_PYTHON, else python3. A missing package, or a backend that
// does not take the problem, is no error: the result says so. Throws Error if the peer fails in another way.

#include <optional>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "experiments/kinds/support/peer_process.h"
#include "experiments/runner/kind.h"
#include "gpu/benchmark/timing.h"

namespace splash::experiments {

// The parameters device and dtype of a kind that PyTorch computes.
ParameterInfo torch_device();
ParameterInfo torch_dtype();

// A case that a peer measures whole: it gets the parameters, and answers with seconds, numbers and texts of
// the kind's columns, or why it could not run.
CaseResult torch_case(PeerProcess& peer, const Parameters& p);

struct PeerResult {
  std::string unavailable;  // why it could not run; empty if it ran
  std::string version;
  std::vector<double> seconds;
  double peak_memory_bytes = 0;  // beyond the inputs; includes the output and the gradients
  Tensor<float> out;
  Tensor<float> d_q;  // of a GPU call with a d_out
};

// Sets version. If the peer ran, also sets peak_memory_bytes and the columns of add_times. Returns whether it
// ran.
bool add_peer_run(const PeerResult& peer, CaseResult& result);

// PyTorch's attention and PyPI's entmax on the CPU.
struct TorchCpuJob {
  std::string implementation;             // torch-softmax, torch-entmax15, …
  bool backward = false, causal = false;  // causal: aligned at the end
  double scale = 1;
  int64_t threads = 1, samples = 1;
};

// Runs each job in its own process, so that the peak memory is the job's.
PeerResult run_torch_cpu_peer(const TorchCpuJob& job, const AttentionInputs<float>& inputs,
                              const Tensor<float>& d_out);

// PyTorch's dense attention, AdaSplash and this project's Python package on the GPU.
struct TorchGpuJob {
  std::string backend;  // one of torch_gpu_backends()
  std::string dtype;
  bool causal = false;
  int64_t window = 0;                 // of core/mask.h
  std::vector<int64_t> cu_seqlens{};  // of core/mask.h, of queries and of keys; empty: no packed documents
  std::vector<double> alpha{};        // of entmax, 1 or [q_heads]; empty: softmax
  int64_t k_keep = 0;                 // largest scores of each row; 0: all. Only where takes_k_keep()
  std::optional<double> scale{};      // none: 1/sqrt(head_dim)
  gpu::TimingOptions timing{};
  std::string inputs_key;  // inputs with the key of the previous job are not sent again
};

// Entmax of a matrix's rows, on the GPU.
struct TorchGpuRowsJob {
  std::string backend;  // one of torch_gpu_rows_backends()
  std::string dtype;
  double alpha = 1.5;
  gpu::TimingOptions timing{};
  std::string inputs_key;  // scores with the key of the previous job are not sent again
};

// A step of decoding by PyTorch's dense attention (cudnn, flash) or by this project's Python package
// (splash), on Gaussian tensors that the peer draws itself: caches may be gigabytes.
struct TorchGpuDecodeJob {
  std::string backend;
  std::string dtype;
  AttentionShape shape{};
  double alpha = 1.5;  // these three are of splash
  int64_t page_size = 64, bits = 4;
  double scale = 1, query_variance = 1;
  int64_t seed = 1;
  gpu::TimingOptions timing{};
};
struct DecodePeerResult {
  PeerResult run;  // without out
  double caches = 1, nmse = 0, max_error = 0;
};

// cudnn, flash and efficient are fused kernels. math is cuBLAS with a softmax that stores the scores;
// math-tf32 is the same with tf32 products. adasplash and adasplash2 are exact entmax in Triton (arXiv
// 2502.12082, 2604.15180). splash is this project's Python package, called as its users call it.
const std::vector<std::string>& torch_gpu_backends();
bool is_entmax_backend(const std::string& backend);
bool takes_k_keep(const std::string& backend);

// bisection: PyPI's entmax, 23 halvings. adasplash: version 1, Halley and bisection. adasplash2: version 2.
const std::vector<std::string>& torch_gpu_rows_backends();

// One call is forward or, if there is a d_out, forward and the gradients of q, k and v. One process serves
// all jobs.
PeerResult run_torch_gpu_peer(const TorchGpuJob& job, const AttentionInputs<float>& inputs,
                              const Tensor<float>* d_out = nullptr);

// One call is entmax of each row of scores, [1, 1, rows, n]; the result's out has the same shape. One process
// serves all jobs.
PeerResult run_torch_gpu_rows(const TorchGpuRowsJob& job, const Tensor<float>& scores);

// Times rounds over caches that L2 does not hold together; seconds are those of a step. One process serves
// all jobs.
DecodePeerResult run_torch_gpu_decode(const TorchGpuDecodeJob& job);

}  // namespace splash::experiments
