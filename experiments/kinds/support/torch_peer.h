#pragma once
// PyTorch peers of the CPU speed comparison: experiments/peers/torch_attention.py in a process of its own.

#include <cstdint>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace splash::experiments {

struct PeerJob {
  std::string implementation;             // torch-softmax, torch-entmax15, …
  bool backward = false, causal = false;  // causal: aligned at the end
  double scale = 1;
  int64_t threads = 1, samples = 1;
};

struct PeerResult {
  std::string unavailable;  // why the peer could not run; empty where it did
  std::string version;
  std::vector<double> seconds;
  double peak_memory_bytes = 0;
  Tensor<float> out;
};

// Runs the peer with $SPLASH_PEER_PYTHON, else $SPLASH_PYTHON, else python3. A missing PyTorch or entmax is
// no error: the result says so. Throws Error where the peer fails in another way.
PeerResult run_torch_peer(const PeerJob& job, const AttentionInputs<float>& inputs,
                          const Tensor<float>& dout);

}  // namespace splash::experiments
