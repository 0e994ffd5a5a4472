#include "experiments/kinds/support/torch_peers.h"

#include <fmt/format.h>

#include "experiments/kinds/support/peer_process.h"
#include "experiments/kinds/support/timing.h"

namespace splash::experiments {
namespace {

void write_inputs(const PeerProcess& peer, const AttentionInputs<float>& inputs, const Tensor<float>* d_out) {
  write_tensor(peer.folder() / "q.f32", inputs.q);
  write_tensor(peer.folder() / "k.f32", inputs.k);
  write_tensor(peer.folder() / "v.f32", inputs.v);
  if (d_out != nullptr) write_tensor(peer.folder() / "d_out.f32", *d_out);
}

nlohmann::json request_of(const std::string& backend, const std::string& dtype,
                          const gpu::TimingOptions& timing, const std::string& key, const PeerProcess& peer) {
  return {{"backend", backend},
          {"dtype", dtype},
          {"method", timing.method == gpu::TimingMethod::graph ? "graph" : "events"},
          {"cache", timing.cache == gpu::CacheState::cold ? "cold" : "warm"},
          {"samples", timing.samples},
          {"budget", timing.budget_seconds},
          {"warm_up", timing.warm_up_seconds},
          {"key", key},
          {"folder", peer.folder().string()}};
}

// An answer without the tensors, which the peer leaves in its folder.
PeerResult result_of(const nlohmann::json& reply) {
  PeerResult result;
  if (reply.contains("unavailable")) {
    result.unavailable = reply.at("unavailable");
    return result;
  }
  result.version = reply.at("version");
  result.seconds = reply.at("seconds").get<std::vector<double>>();
  result.peak_memory_bytes = reply.at("peak_memory_bytes");
  return result;
}

// null: softmax; a number: of all heads.
nlohmann::json alpha_of(const std::vector<double>& alpha) {
  if (alpha.empty()) return {};
  return alpha.size() == 1 ? nlohmann::json(alpha.front()) : nlohmann::json(alpha);
}

PeerResult ask(PeerProcess& peer, const nlohmann::json& request) {
  return result_of(peer.ask(request));
}

nlohmann::json extents_of(const AttentionShape& s) {
  return {s.batch, s.q_heads, s.kv_heads, s.q_len, s.kv_len, s.head_dim};
}

}  // namespace

ParameterInfo torch_device() {
  return {"device",
          ParameterType::text,
          std::string("auto"),
          "",
          "where it computes; auto: the GPU where there is one",
          {"auto", "cpu", "cuda"}};
}

ParameterInfo torch_dtype() {
  return {"dtype",
          ParameterType::text,
          std::string("auto"),
          "",
          "in which it computes; auto: bfloat16 on a GPU, else float32",
          {"auto", "float32", "bfloat16", "float16"}};
}

CaseResult torch_case(PeerProcess& peer, const Parameters& p) {
  nlohmann::json job;
  for (const auto& [name, value] : p)
    std::visit([&, &key = name](const auto& held) { job[key] = held; }, value);
  const nlohmann::json reply = peer.ask(job);
  CaseResult result;
  if (reply.contains("unavailable")) {
    result.texts["version"] = "not run: " + reply.at("unavailable").get<std::string>();
    return result;
  }
  result.numbers = reply.at("numbers").get<std::map<std::string, double>>();
  result.texts = reply.at("texts").get<std::map<std::string, std::string>>();
  add_times(reply.at("seconds").get<std::vector<double>>(), result);
  return result;
}

bool add_peer_run(const PeerResult& peer, CaseResult& result) {
  result.texts["version"] = peer.unavailable.empty() ? peer.version : "not run: " + peer.unavailable;
  if (!peer.unavailable.empty()) return false;
  result.numbers["peak_memory_bytes"] = peer.peak_memory_bytes;
  add_times(peer.seconds, result);
  return true;
}

PeerResult run_torch_cpu_peer(const TorchCpuJob& job, const AttentionInputs<float>& inputs,
                              const Tensor<float>& d_out) {
  PeerProcess peer("torch_attention.py");
  write_inputs(peer, inputs, &d_out);
  PeerResult result = ask(peer, {{"implementation", job.implementation},
                                 {"backward", job.backward},
                                 {"causal", job.causal},
                                 {"scale", job.scale},
                                 {"q_shape", {1, inputs.q.heads(), inputs.q.length(), inputs.q.dim()}},
                                 {"k_shape", {1, inputs.k.heads(), inputs.k.length(), inputs.k.dim()}},
                                 {"threads", job.threads},
                                 {"samples", job.samples},
                                 {"folder", peer.folder().string()}});
  if (!result.unavailable.empty()) return result;
  result.out = Tensor<float>(inputs.q.batch(), inputs.q.heads(), inputs.q.length(), inputs.q.dim());
  read_tensor(peer.folder() / "out.f32", result.out);
  return result;
}

const std::vector<std::string>& torch_gpu_backends() {
  static const std::vector<std::string> names{"cudnn",     "flash",     "efficient",  "math",
                                              "math-tf32", "adasplash", "adasplash2", "splash"};
  return names;
}

const std::vector<std::string>& torch_gpu_rows_backends() {
  static const std::vector<std::string> names{"bisection", "adasplash", "adasplash2"};
  return names;
}

bool is_entmax_backend(const std::string& backend) {
  return backend == "splash" || backend.starts_with("adasplash");
}

bool takes_k_keep(const std::string& backend) {
  return backend == "splash";
}

PeerResult run_torch_gpu_peer(const TorchGpuJob& job, const AttentionInputs<float>& inputs,
                              const Tensor<float>* d_out) {
  static PeerProcess peer("torch_gpu_attention.py");
  static std::string sent;  // key of the inputs that are in the peer's folder
  const std::string key = job.inputs_key + (d_out != nullptr ? ", d_out" : "");
  if (sent != key) {
    write_inputs(peer, inputs, d_out);
    sent = key;
  }
  const AttentionShape shape = inputs.shape();
  nlohmann::json request = request_of(job.backend, job.dtype, job.timing, key, peer);
  request["causal"] = job.causal;
  request["window"] = job.window;
  request["cu_seqlens"] = job.cu_seqlens;
  request["alpha"] = alpha_of(job.alpha);
  request["k_keep"] = job.k_keep;
  request["scale"] = job.scale ? nlohmann::json(*job.scale) : nlohmann::json();
  request["backward"] = d_out != nullptr;
  request["shape"] = extents_of(shape);
  PeerResult result = ask(peer, request);
  if (!result.unavailable.empty()) return result;
  result.out = Tensor<float>(shape.batch, shape.q_heads, shape.q_len, shape.head_dim);
  read_tensor(peer.folder() / "out.f32", result.out);
  if (d_out != nullptr) {
    result.d_q = result.out;
    read_tensor(peer.folder() / "d_q.f32", result.d_q);
  }
  return result;
}

PeerResult run_torch_gpu_rows(const TorchGpuRowsJob& job, const Tensor<float>& scores) {
  static PeerProcess peer("torch_gpu_rows.py");
  static std::string sent;
  if (sent != job.inputs_key) write_tensor(peer.folder() / "scores.f32", scores);
  sent = job.inputs_key;
  nlohmann::json request = request_of(job.backend, job.dtype, job.timing, job.inputs_key, peer);
  request["alpha"] = job.alpha;
  request["shape"] = {scores.length(), scores.dim()};
  PeerResult result = ask(peer, request);
  if (!result.unavailable.empty()) return result;
  result.out = scores;
  read_tensor(peer.folder() / "out.f32", result.out);
  return result;
}

DecodePeerResult run_torch_gpu_decode(const TorchGpuDecodeJob& job) {
  static PeerProcess peer("torch_gpu_decode.py", "torch, and splash_attention for torch-splash");
  const std::string key =
      fmt::format("{} {} variance {} seed {}", to_string(job.shape), job.dtype, job.query_variance, job.seed);
  nlohmann::json request = request_of(job.backend, job.dtype, job.timing, key, peer);
  request["shape"] = extents_of(job.shape);
  request["scale"] = job.scale;
  request["alpha"] = job.alpha;
  request["page_size"] = job.page_size;
  request["bits"] = job.bits;
  request["query_variance"] = job.query_variance;
  request["seed"] = job.seed;
  const nlohmann::json reply = peer.ask(request);
  DecodePeerResult result{.run = result_of(reply)};
  if (!result.run.unavailable.empty()) return result;
  result.caches = reply.at("caches");
  result.nmse = reply.at("nmse");
  result.max_error = reply.at("max_error");
  return result;
}

}  // namespace splash::experiments
