// A kernel variant, or a dense PyTorch peer, on one problem: time, error, counted work, resources.

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "analysis/counts.h"
#include "analysis/error_metrics.h"
#include "analysis/statistics.h"
#include "core/error.h"
#include "experiments/kinds/gpu_attention_columns.h"
#include "experiments/kinds/gpu_problem.h"
#include "experiments/kinds/torch_gpu_peer.h"
#include "experiments/runner/ceilings.h"
#include "gpu/benchmark/timing.h"
#include "gpu/engine/attention.h"

namespace splash::experiments {
namespace {

constexpr const char* kPeerPrefix = "torch-";

bool is_peer(const std::string& implementation) {
  return implementation.starts_with(kPeerPrefix);
}

gpu::TimingOptions timing_of(const Parameters& p) {
  return {.cache = get_text(p, "cache") == "cold" ? gpu::CacheState::cold : gpu::CacheState::warm,
          .method = get_text(p, "method") == "graph" ? gpu::TimingMethod::graph : gpu::TimingMethod::events,
          .samples = get_integer(p, "samples")};
}

void add_times(std::vector<double> seconds, const AttentionSpec& spec, CaseResult& result) {
  const auto interval = analysis::median_interval(seconds);
  const double median = analysis::median(seconds);
  const auto pairs = static_cast<double>(visible_pairs(spec.shape, spec.mask));
  result.numbers["time_median"] = median;
  result.numbers["time_low"] = interval.low;
  result.numbers["time_high"] = interval.high;
  result.numbers["dense_equivalent_flops"] =
      analysis::forward_flops(pairs, static_cast<double>(spec.shape.head_dim));
  result.numbers["dense_equivalent_rate"] = result.numbers["dense_equivalent_flops"] / median;
  result.vectors["time"] = std::move(seconds);
}

void add_errors(const AttentionSpec& spec, const Tensor<double>& q, const Tensor<double>& k,
                const Tensor<double>& v, const Tensor<double>& out, int64_t rows, CaseResult& result) {
  CheckedRows checked = checked_rows(spec, rows);
  const auto errors_of = [&](const Tensor<double>& reference) {
    const Tensor<double> part = checked.of(out);
    return analysis::compare_arrays({part.data(), static_cast<size_t>(part.size())},
                                    {reference.data(), static_cast<size_t>(reference.size())});
  };
  const auto own = errors_of(oracle(checked, q, k, v).out);
  result.numbers["mse"] = own.mse;
  result.numbers["nmse"] = own.nmse;
  result.numbers["max_error"] = own.max_error;
  const bool dense_softmax =
      spec.normalizer.kind == NormalizerKind::softmax && spec.selection.kind == SelectionKind::all;
  if (!dense_softmax) {
    checked.spec.normalizer.kind = NormalizerKind::softmax;
    checked.spec.selection = {};
    result.numbers["mse_vs_softmax"] = errors_of(oracle(checked, q, k, v).out).mse;
  }
}

// The least time that the useful work can take: products at the measured rate of their unit, bytes at the
// measured bandwidth of DRAM.
void add_roof(const gpu::Work& work, Dtype dtype, CaseResult& result) {
  std::string unit = gpu::to_string(work.unit);
  if (work.unit == gpu::MathUnit::f16 && dtype != Dtype::f16) unit = to_string(Dtype::bf16);
  const double rate = matrix_rate(unit);
  const double floor = std::max(work.useful_flops / rate, work.dram_bytes / dram_bandwidth());
  result.numbers["floor_time"] = floor;
  result.numbers["roof_share"] = floor / result.numbers["time_median"];
}

void add_plan(const gpu::Plan& plan, CaseResult& result) {
  const gpu::Work& work = plan.work;
  result.numbers["useful_flops"] = work.useful_flops;
  result.numbers["executed_flops"] = work.executed_flops;
  result.numbers["executed_rate"] = work.executed_flops / result.numbers["time_median"];
  result.numbers["dram_bytes_counted"] = work.dram_bytes;
  result.numbers["l2_bytes_counted"] = work.l2_bytes;
  result.numbers["tile_q"] = plan.tile.q;
  result.numbers["tile_k"] = plan.tile.k;
  result.numbers["stages"] = plan.tile.stages;
  result.numbers["launches"] = static_cast<double>(plan.kernels.size());
  result.texts["math_unit"] = gpu::to_string(work.unit);
  // The kernel with the most threads stands for the variant; small helpers beside it do not bound it.
  const auto most = [](const gpu::KernelLaunch& k) { return k.blocks * k.threads; };
  const auto& main = *std::max_element(plan.kernels.begin(), plan.kernels.end(),
                                       [&](auto& a, auto& b) { return most(a) < most(b); });
  const gpu::KernelResources resources = gpu::kernel_resources(main);
  result.texts["kernel"] = main.name;
  result.numbers["blocks"] = static_cast<double>(main.blocks);
  result.numbers["threads"] = main.threads;
  result.numbers["registers"] = resources.registers;
  result.numbers["local_bytes"] = static_cast<double>(resources.local_bytes);
  result.numbers["shared_bytes"] = static_cast<double>(main.shared_bytes + resources.static_shared);
  result.numbers["blocks_per_multiprocessor"] = resources.blocks_per_multiprocessor;
}

void add_declaration(const gpu::Variant& variant, CaseResult& result) {
  result.texts["idea"] = variant.idea;
  result.texts["finding"] = variant.finding;
  result.texts["predicted_over"] =
      variant.predicted.over.empty() ? "" : variant.ladder + "/" + variant.predicted.over;
  if (variant.predicted.low > 0) {
    result.numbers["predicted_low"] = variant.predicted.low;
    result.numbers["predicted_high"] = variant.predicted.high;
  }
}

CaseResult measure_variant(const Parameters& p, const AttentionSpec& spec) {
  const gpu::Variant& variant = gpu::find_variant(get_text(p, "implementation"));
  const Dtype dtype = problem_dtype(p);
  CaseResult result;
  add_declaration(variant, result);
  const gpu::Stream stream;
  const std::string reason =
      gpu::unsupported_reason(variant, spec, dtype, gpu::list_devices().at(stream.device()));
  if (!reason.empty()) {
    result.texts["version"] = "not run: it " + reason;
    return result;
  }
  const auto inputs = problem_inputs(p);
  const auto q = gpu::DeviceTensor::from(stream, dtype, inputs->q),
             k = gpu::DeviceTensor::from(stream, dtype, inputs->k),
             v = gpu::DeviceTensor::from(stream, dtype, inputs->v);
  gpu::DeviceTensor out(stream, dtype, q.view().extents);
  stream.synchronize();
  const int64_t before = gpu::used_device_bytes();
  gpu::reset_peak_device_bytes();
  const gpu::PreparedAttention attention(variant, spec, dtype, stream);
  const auto call = [&] { attention.enqueue(q.view(), k.view(), v.view(), out.view()); };
  out.buffer().fill(0xFF);  // NaN where nothing is written
  call();
  add_errors(spec, q.to_host(), k.to_host(), v.to_host(), out.to_host(), get_integer(p, "checked_rows"),
             result);
  result.numbers["peak_memory_bytes"] =
      static_cast<double>(gpu::peak_device_bytes() - before + out.buffer().bytes());
  gpu::Timing timing = gpu::time_on_device(call, stream, timing_of(p));
  add_times(std::move(timing.seconds), spec, result);
  result.numbers["clock_before"] = timing.clock_before_hz;
  result.numbers["clock_after"] = timing.clock_after_hz;
  result.texts["warning"] = timing.warning;
  add_plan(attention.plan(), result);
  add_roof(attention.plan().work, dtype, result);
  result.texts["version"] = "this build";
  return result;
}

CaseResult measure_peer(const Parameters& p, AttentionSpec spec) {
  spec.normalizer.kind = NormalizerKind::softmax;
  spec.selection = {};
  CaseResult result;
  const TorchGpuResult peer =
      run_torch_gpu_peer({.backend = get_text(p, "implementation").substr(std::string(kPeerPrefix).size()),
                          .dtype = get_text(p, "dtype"),
                          .causal = get_text(p, "mask") != "none",
                          .timing = timing_of(p),
                          .inputs_key = problem_key(p)},
                         *problem_inputs(p));
  result.texts["version"] = peer.version;
  if (!peer.unavailable.empty()) {
    result.texts["version"] = "not run: " + peer.unavailable;
    return result;
  }
  const auto rounded = [&](const Tensor<float>& tensor) {
    Tensor<double> copy = tensor.cast<double>();
    for (int64_t i = 0; i < copy.size(); ++i) copy.data()[i] = round_to(problem_dtype(p), copy.data()[i]);
    return copy;
  };
  const auto inputs = problem_inputs(p);
  add_errors(spec, rounded(inputs->q), rounded(inputs->k), rounded(inputs->v), peer.out.cast<double>(),
             get_integer(p, "checked_rows"), result);
  result.numbers["peak_memory_bytes"] = peer.peak_memory_bytes;
  add_times(peer.seconds, spec, result);
  return result;
}

class GpuAttention : public Kind {
 public:
  std::string name() const override { return "gpu-attention"; }
  std::string summary() const override {
    return "time, error, counted work and resources of a GPU kernel variant, or of PyTorch's dense attention";
  }

  std::vector<ParameterInfo> parameters() const override {
    using enum ParameterType;
    std::vector<ParameterInfo> list{
        {"implementation",
         text,
         std::string("torch-cudnn"),
         "",
         "a variant's id, a ladder's rungs as LADDER/*, or torch-cudnn, -flash, -efficient, -math, "
         "-math-tf32",
         {}},
        {"method",
         text,
         std::string("events"),
         "",
         "lone calls between events, or a replayed graph",
         {"events", "graph"}},
        {"cache", text, std::string("warm"), "", "whether L2 is flushed before each call", {"warm", "cold"}},
        {"samples", integer, int64_t{40}, "1", "timed samples, fewer where a call takes long", {}},
        {"checked_rows",
         integer,
         int64_t{64},
         "1",
         "queries of the last batch entry that are held against the oracle",
         {}},
    };
    for (ParameterInfo& info : problem_parameters()) list.push_back(std::move(info));
    return list;
  }

  std::vector<analysis::ColumnInfo> columns() const override { return gpu_attention_columns(); }
  bool needs_device() const override { return true; }

  // "wmma/*" is every rung that this build has.
  std::vector<Value> choices(const std::string& parameter, const Value& value) const override {
    const auto* text = std::get_if<std::string>(&value);
    if (parameter != "implementation" || text == nullptr || !text->ends_with("/*")) return {value};
    const std::string ladder = text->substr(0, text->size() - 2);
    std::vector<Value> rungs;
    for (const gpu::Variant* variant : gpu::all_variants()) {
      if (variant->ladder == ladder) rungs.emplace_back(variant->id());
    }
    return rungs;
  }

  void check(const Parameters& p) const override {
    check_problem(p);
    const std::string& implementation = get_text(p, "implementation");
    if (is_peer(implementation)) {
      const auto& peers = torch_gpu_backends();
      const std::string backend = implementation.substr(std::string(kPeerPrefix).size());
      if (std::find(peers.begin(), peers.end(), backend) == peers.end()) {
        throw InvalidArgument(
            fmt::format("PyTorch backend '{}' is unknown; there are: {}", backend, fmt::join(peers, ", ")));
      }
    } else if (!gpu::all_variants()
                    .empty()) {  // without CUDA the run ends for want of a device, not of a name
      gpu::find_variant(implementation);
    }
    for (const char* name : {"samples", "checked_rows"}) {
      if (get_integer(p, name) < 1)
        throw InvalidArgument(fmt::format("{} is {}; it must be at least 1", name, get_integer(p, name)));
    }
    if (get_text(p, "method") == "graph" && get_text(p, "cache") == "cold")
      throw InvalidArgument("a replayed graph has a warm cache; cold timing needs the method events");
  }

  std::string input_hash(const Parameters& p) const override { return "gaussian: " + problem_key(p); }

  CaseResult evaluate(const Parameters& p) const override {
    const AttentionSpec spec = problem_spec(p);
    return is_peer(get_text(p, "implementation")) ? measure_peer(p, spec) : measure_variant(p, spec);
  }
};

const GpuAttention kKind;
const KindRegistration kRegistration(kKind);

}  // namespace
}  // namespace splash::experiments
