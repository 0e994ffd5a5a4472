#include "experiments/kinds/support/torch_peer.h"

#include "experiments/kinds/support/peer_process.h"

namespace splash::experiments {

PeerResult run_torch_peer(const PeerJob& job, const AttentionInputs<float>& inputs,
                          const Tensor<float>& dout) {
  PeerProcess peer("torch_attention.py");  // one a job: its peak memory is its own
  write_tensor(peer.folder() / "q.f32", inputs.q);
  write_tensor(peer.folder() / "k.f32", inputs.k);
  write_tensor(peer.folder() / "v.f32", inputs.v);
  write_tensor(peer.folder() / "dout.f32", dout);
  const auto reply = peer.ask({{"implementation", job.implementation},
                               {"backward", job.backward},
                               {"causal", job.causal},
                               {"scale", job.scale},
                               {"q_shape", {1, inputs.q.heads(), inputs.q.length(), inputs.q.dim()}},
                               {"k_shape", {1, inputs.k.heads(), inputs.k.length(), inputs.k.dim()}},
                               {"threads", job.threads},
                               {"samples", job.samples},
                               {"folder", peer.folder().string()}});
  PeerResult result;
  if (reply.contains("unavailable")) {
    result.unavailable = reply.at("unavailable");
    return result;
  }
  result.version = reply.at("version");
  result.seconds = reply.at("seconds").get<std::vector<double>>();
  result.peak_memory_bytes = reply.at("peak_memory_bytes");
  result.out = Tensor<float>(inputs.q.batch(), inputs.q.heads(), inputs.q.length(), inputs.q.dim());
  read_tensor(peer.folder() / "out.f32", result.out);
  return result;
}

}  // namespace splash::experiments
