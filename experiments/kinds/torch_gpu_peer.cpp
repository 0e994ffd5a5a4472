#include "experiments/kinds/torch_gpu_peer.h"

#include "experiments/kinds/peer_process.h"

namespace splash::experiments {

const std::vector<std::string>& torch_gpu_backends() {
  static const std::vector<std::string> names{"cudnn",     "flash",     "efficient", "math",
                                              "math-tf32", "adasplash", "adasplash2"};
  return names;
}

bool is_entmax_backend(const std::string& backend) {
  return backend.starts_with("adasplash");
}

TorchGpuResult run_torch_gpu_peer(const TorchGpuJob& job, const AttentionInputs<float>& inputs,
                                  const Tensor<float>* d_out) {
  static PeerProcess peer("torch_gpu_attention.py");
  static std::string sent;  // the inputs that lie in the peer's folder
  const std::string key = job.inputs_key + (d_out != nullptr ? ", d_out" : "");
  if (sent != key) {
    write_tensor(peer.folder() / "q.f32", inputs.q);
    write_tensor(peer.folder() / "k.f32", inputs.k);
    write_tensor(peer.folder() / "v.f32", inputs.v);
    if (d_out != nullptr) write_tensor(peer.folder() / "d_out.f32", *d_out);
    sent = key;
  }
  const AttentionShape shape = inputs.shape();
  const bool graph = job.timing.method == gpu::TimingMethod::graph;
  const bool cold = job.timing.cache == gpu::CacheState::cold;
  const auto reply = peer.ask(
      {{"backend", job.backend},
       {"dtype", job.dtype},
       {"causal", job.causal},
       {"alpha", job.alpha ? nlohmann::json(*job.alpha) : nlohmann::json()},
       {"backward", d_out != nullptr},
       {"method", graph ? "graph" : "events"},
       {"cache", cold ? "cold" : "warm"},
       {"samples", job.timing.samples},
       {"budget", job.timing.budget_seconds},
       {"warm_up", job.timing.warm_up_seconds},
       {"key", key},
       {"folder", peer.folder().string()},
       {"shape", {shape.batch, shape.q_heads, shape.kv_heads, shape.q_len, shape.kv_len, shape.head_dim}}});
  TorchGpuResult result;
  if (reply.contains("unavailable")) {
    result.unavailable = reply.at("unavailable");
    return result;
  }
  result.version = reply.at("version");
  result.seconds = reply.at("seconds").get<std::vector<double>>();
  result.peak_memory_bytes = reply.at("peak_memory_bytes");
  result.out = Tensor<float>(shape.batch, shape.q_heads, shape.q_len, shape.head_dim);
  read_tensor(peer.folder() / "out.f32", result.out);
  if (d_out != nullptr) {
    result.d_q = result.out;
    read_tensor(peer.folder() / "d_q.f32", result.d_q);
  }
  return result;
}

}  // namespace splash::experiments
