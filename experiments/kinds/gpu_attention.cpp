// One case: a kernel variant or a PyTorch peer on one problem. Measures time, error, counted work and
// resources.

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include <fmt/format.h>

#include "analysis/error_metrics.h"
#include "analysis/launches.h"
#include "analysis/machine.h"
#include "core/error.h"
#include "experiments/kinds/support/counted_backward.h"
#include "experiments/kinds/support/counted_kernel.h"
#include "experiments/kinds/support/gpu_attention_columns.h"
#include "experiments/kinds/support/gpu_file_problem.h"
#include "experiments/kinds/support/gpu_problem.h"
#include "experiments/kinds/support/gpu_support.h"
#include "experiments/kinds/support/planned_kernel.h"
#include "experiments/kinds/support/timing.h"
#include "experiments/kinds/support/torch_peers.h"
#include "experiments/runner/ceilings.h"
#include "experiments/runner/project_root.h"
#include "gpu/engine/attention.h"
#include "gpu/engine/chooser.h"
#include "gpu/engine/tuned.h"
#include "gpu/engine/work.h"
#include "gpu/entmax/attention.h"

namespace splash::experiments {
namespace {

constexpr const char* kPeerPrefix = "torch-";

bool is_peer(const std::string& implementation) {
  return implementation.starts_with(kPeerPrefix);
}

std::string backend_of(const std::string& peer) {
  return peer.substr(std::string(kPeerPrefix).size());
}

// The problem that the implementation computes. PyTorch's attention is dense softmax, whatever the case asks
// for.
Parameters computed(Parameters p) {
  const std::string& implementation = get_text(p, "implementation");
  if (is_peer(implementation) && !is_entmax_backend(backend_of(implementation))) {
    p["normalizer"] = std::string("softmax");
    p["selection"] = std::string("all");
  }
  return p;
}

bool with_backward(const Parameters& p) {
  return get_text(p, "pass") == "forward_backward";
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

void add_gradient_error(const AttentionSpec& spec, const Tensor<double>& q, const Tensor<double>& k,
                        const Tensor<double>& v, const Tensor<double>& d_out, const Tensor<double>& d_q,
                        int64_t rows, CaseResult& result) {
  const CheckedRows checked = checked_rows(spec, rows);
  const Tensor<double> part = checked.of(d_q), reference = oracle_d_q(checked, q, k, v, d_out);
  result.numbers["d_q_nmse"] =
      analysis::compare_arrays({part.data(), static_cast<size_t>(part.size())},
                               {reference.data(), static_cast<size_t>(reference.size())})
          .nmse;
}

// Adds the least time that the executed work can take.
void add_roof(const gpu::Work& work, const std::string& unit, CaseResult& result) {
  const double floor = floor_seconds(work, unit, result.numbers["time_median"], measured_ceilings());
  result.numbers["floor_time"] = floor;
  result.numbers["roof_share"] = floor / result.numbers["time_median"];
}

void add_plan(const gpu::Plan& plan, CaseResult& result) {
  result.numbers["tile_q"] = plan.tile.q;
  result.numbers["tile_k"] = plan.tile.k;
  result.numbers["stages"] = plan.tile.stages;
  result.numbers["launches"] = static_cast<double>(plan.kernels.size());
  result.texts["math_unit"] = gpu::to_string(plan.unit);
  const gpu::KernelLaunch& main = main_kernel(plan);
  const gpu::KernelResources resources = gpu::kernel_resources(main);
  result.texts["kernel"] = main.name;
  result.numbers["blocks"] = static_cast<double>(main.blocks);
  result.numbers["threads"] = main.threads;
  result.numbers["registers"] = resources.registers;
  result.numbers["local_bytes"] = static_cast<double>(resources.local_bytes);
  result.numbers["shared_bytes"] = static_cast<double>(main.shared_bytes + resources.static_shared);
  result.numbers["blocks_per_multiprocessor"] = resources.blocks_per_multiprocessor;
}

// If a call has several kernels, records each with the compiler's resources. Their counts are added later.
void add_launches(const gpu::Plan& plan, CaseResult& result) {
  std::vector<analysis::Launch> launches = planned_launches(plan, {});
  for (std::size_t i = 0; i < launches.size(); ++i) {
    const gpu::KernelResources resources = gpu::kernel_resources(plan.kernels[i]);
    launches[i].use.registers = resources.registers;
    launches[i].use.shared_bytes += resources.static_shared;
  }
  if (!launches.empty()) result.texts[analysis::kLaunchesColumn] = analysis::launches_text(launches);
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

struct DeviceInputs {
  DeviceInputs(const Parameters& p, const gpu::Stream& stream)
      : q(gpu::DeviceTensor::from(stream, problem_dtype(p), problem_inputs(p)->q)),
        k(gpu::DeviceTensor::from(stream, problem_dtype(p), problem_inputs(p)->k)),
        v(gpu::DeviceTensor::from(stream, problem_dtype(p), problem_inputs(p)->v)),
        out(stream, problem_dtype(p), q.view().extents) {
    out.buffer().fill(0xFF);  // NaN, which stays where nothing is written
  }
  gpu::DeviceTensor q, k, v, out;
};

void measure_forward(const gpu::Variant& variant, const Parameters& p, const AttentionSpec& spec,
                     const gpu::Stream& stream, CaseResult& result) {
  const Dtype dtype = problem_dtype(p);
  DeviceInputs in(p, stream);
  stream.synchronize();
  const int64_t before = gpu::used_device_bytes();
  gpu::reset_peak_device_bytes();
  const gpu::PreparedAttention attention(variant, spec, dtype, stream);
  const auto call = [&] { attention.enqueue(in.q.view(), in.k.view(), in.v.view(), in.out.view()); };
  call();
  add_errors(spec, in.q.to_host(), in.k.to_host(), in.v.to_host(), in.out.to_host(),
             get_integer(p, "checked_rows"), result);
  result.numbers["peak_memory_bytes"] =
      static_cast<double>(gpu::peak_device_bytes() - before + in.out.buffer().bytes());
  time_call(call, stream, p, result);
  add_dense_equivalent(spec, false, result);
  add_plan(attention.plan(), result);
  add_launches(attention.plan(), result);
  if (!variant.backward) return;
  add_support(spec, dtype, in.q.view(), in.k.view(), in.v.view(), in.out.view(), stream, result);
}

// A nearly dense support may be too much for backward or for the memory. That is a finding, not a failure.
std::string why_not_stored(gpu::entmax::EntmaxAttention& attention) {
  try {
    attention.ensure_stored();
    return "";
  } catch (const InvalidArgument& error) {
    return error.what();
  } catch (const OutOfDeviceMemory& error) {
    return error.what();
  }
}

void measure_forward_backward(const Parameters& p, const AttentionSpec& spec, const gpu::Stream& stream,
                              CaseResult& result) {
  const Dtype dtype = problem_dtype(p);
  DeviceInputs in(p, stream);
  add_support(spec, dtype, in.q.view(), in.k.view(), in.v.view(), in.out.view(), stream, result);
  const auto d_out = gpu::DeviceTensor::from(stream, dtype, *problem_d_out(p));
  stream.synchronize();
  const int64_t before = gpu::used_device_bytes();
  gpu::reset_peak_device_bytes();
  gpu::DeviceTensor d_q(stream, dtype, in.q.view().extents), d_k(stream, dtype, in.k.view().extents),
      d_v(stream, dtype, in.v.view().extents);
  d_q.buffer().fill(0xFF);
  gpu::entmax::EntmaxAttention attention(spec, dtype, stream, 0, gpu::entmax::ForwardPath::fastest,
                                         gpu::entmax::Tuning{});  // records use the default tuning
  const auto call = [&] {
    attention.forward(in.q.view(), in.k.view(), in.v.view(), in.out.view());
    attention.backward(in.q.view(), in.k.view(), in.v.view(), d_out.view(), d_q.view(), d_k.view(),
                       d_v.view(), nullptr, gpu::entmax::StoreCheck::trust);
  };
  attention.forward(in.q.view(), in.k.view(), in.v.view(), in.out.view());
  if (const std::string why = why_not_stored(attention); !why.empty()) {
    result.texts["version"] = "not run: " + why;
    return;
  }
  call();
  const Tensor<double> q = in.q.to_host(), k = in.k.to_host(), v = in.v.to_host();
  add_errors(spec, q, k, v, in.out.to_host(), get_integer(p, "checked_rows"), result);
  add_gradient_error(spec, q, k, v, d_out.to_host(), d_q.to_host(), get_integer(p, "checked_rows"), result);
  result.numbers["peak_memory_bytes"] =
      static_cast<double>(gpu::peak_device_bytes() - before + in.out.buffer().bytes());
  time_call(call, stream, p, result);
  add_dense_equivalent(spec, true, result);
}

// Says so if a rung that chooses followed a measurement on this GPU and not its rule.
void add_tuned(const gpu::Variant& variant, const AttentionSpec& spec, Dtype dtype,
               const gpu::DeviceInfo& device, CaseResult& result) {
  const gpu::Variant* const tuned = gpu::tuned_variant(variant.id(), spec, dtype, device);
  if (tuned == nullptr) return;
  result.texts["version"] += fmt::format("; {}, as tuned on this GPU", tuned->id());
  gpu::tell_once(
      fmt::format("{} runs {}, as tuned on this GPU for {}; with SPLASH_TUNED=off its rule chooses",
                  variant.id(), tuned->id(), gpu::tuned_problem(spec, dtype)));
}

CaseResult measure_variant(const Parameters& p, const AttentionSpec& spec) {
  const gpu::Variant& variant = gpu::find_variant(get_text(p, "implementation"));
  CaseResult result;
  add_declaration(variant, result);
  const gpu::Stream stream;
  const gpu::DeviceInfo device = gpu::list_devices().at(stream.device());
  const std::string reason = gpu::unsupported_reason(variant, spec, problem_dtype(p), device);
  if (!reason.empty()) {
    result.texts["version"] = "not run: it " + reason;
  } else if (!with_backward(p)) {
    measure_forward(variant, p, spec, stream, result);
    add_tuned(variant, spec, problem_dtype(p), device, result);
  } else if (!variant.backward) {
    result.texts["version"] = "not run: it has no backward";
  } else {
    measure_forward_backward(p, spec, stream, result);
  }
  return result;
}

Tensor<double> rounded(const Tensor<float>& tensor, Dtype dtype) {
  Tensor<double> copy = tensor.cast<double>();
  for (int64_t i = 0; i < copy.size(); ++i) copy.data()[i] = round_to(dtype, copy.data()[i]);
  return copy;
}

CaseResult measure_peer(const Parameters& p, const AttentionSpec& spec) {
  CaseResult result;
  const std::string backend = backend_of(get_text(p, "implementation"));
  const bool entmax = is_entmax_backend(backend);
  const bool keeps_some = spec.selection.kind == SelectionKind::top_k_row && takes_k_keep(backend);
  if (entmax && (spec.normalizer.kind != NormalizerKind::entmax ||
                 (spec.selection.kind != SelectionKind::all && !keeps_some))) {
    result.texts["version"] =
        fmt::format("not run: it computes entmax over all keys{} and nothing else",
                    takes_k_keep(backend) ? " or the largest scores of each row (top_k_row)" : "");
    return result;
  }
  const bool backward = with_backward(p);
  const auto inputs = problem_inputs(p);
  const auto d_out = backward ? problem_d_out(p) : nullptr;
  const PeerResult peer =
      run_torch_gpu_peer({.backend = backend,
                          .dtype = get_text(p, "dtype"),
                          .causal = get_text(p, "mask") != "none",
                          .window = spec.mask.window,
                          .cu_seqlens = spec.mask.cu_seqlens_q,
                          .alpha = entmax ? spec.normalizer.alpha : std::vector<double>{},
                          .k_keep = keeps_some ? spec.selection.k_keep : 0,
                          .scale = spec.scale != 0 ? std::optional(spec.scale) : std::nullopt,
                          .timing = timing_of(p),
                          .inputs_key = problem_key(p)},
                         *inputs, d_out.get());
  if (!add_peer_run(peer, result)) return result;
  const Dtype dtype = problem_dtype(p);
  const int64_t rows = get_integer(p, "checked_rows");
  const Tensor<double> q = rounded(inputs->q, dtype), k = rounded(inputs->k, dtype),
                       v = rounded(inputs->v, dtype);
  add_errors(spec, q, k, v, peer.out.cast<double>(), rows, result);
  if (backward)
    add_gradient_error(spec, q, k, v, rounded(*d_out, dtype), peer.d_q.cast<double>(), rows, result);
  add_dense_equivalent(spec, backward, result);
  return result;
}

class GpuAttention : public Kind {
 public:
  std::string name() const override { return "gpu-attention"; }
  std::string summary() const override {
    return "time, error, counted work and resources of a GPU kernel variant, or of attention in PyTorch";
  }

  std::vector<ParameterInfo> parameters() const override {
    using enum ParameterType;
    std::vector<ParameterInfo> list{
        {"implementation",
         text,
         std::string("torch-cudnn"),
         "",
         "a variant's id, a ladder's rungs as LADDER/*, or torch-cudnn, -flash, -efficient, -math, "
         "-math-tf32, -adasplash, -adasplash2, -splash (our own, called from Python)",
         {}},
        {"pass",
         text,
         std::string("forward"),
         "",
         "what a call computes: the output, or also the gradients of q, k and v",
         {"forward", "forward_backward"}},
    };
    for (ParameterInfo& info : timing_parameters()) list.push_back(std::move(info));
    list.push_back({"checked_rows",
                    integer,
                    int64_t{64},
                    "1",
                    "queries of the last batch entry that are held against the oracle",
                    {}});
    for (ParameterInfo& info : problem_input_parameters()) list.push_back(std::move(info));
    for (ParameterInfo& info : problem_parameters()) list.push_back(std::move(info));
    return list;
  }

  std::vector<report::ColumnInfo> columns() const override { return gpu_attention_columns(); }
  bool needs_device() const override { return true; }

  // "wmma/*" stands for every rung of wmma in this build.
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

  void add_from_inputs(Parameters& set) const override { add_file_problem(set); }

  void check(const Parameters& p) const override {
    check_problem(p);
    check_input(p);
    const std::string& implementation = get_text(p, "implementation");
    if (is_peer(implementation)) {
      const auto& peers = torch_gpu_backends();
      const std::string backend = backend_of(implementation);
      if (std::find(peers.begin(), peers.end(), backend) == peers.end()) {
        throw InvalidArgument(
            fmt::format("PyTorch backend '{}' is unknown; there are: {}", backend, fmt::join(peers, ", ")));
      }
    } else if (!gpu::all_variants()
                    .empty()) {  // without CUDA the run ends for want of a device, not of a name
      gpu::find_variant(implementation);
    }
    check_timing(p);
    require_one(p, "checked_rows");
  }

  Parameters used(const Parameters& p) const override {
    Parameters kept = computed(p);
    kept["checked_rows"] = checked_row_count(kept, get_integer(p, "checked_rows"));
    keep_used_problem(kept, with_backward(p));
    return kept;
  }

  std::string input_hash(const Parameters& p) const override { return problem_key(p); }

  CaseResult evaluate(const Parameters& p) const override {
    const AttentionSpec spec = problem_spec(computed(p));
    return is_peer(get_text(p, "implementation")) ? measure_peer(p, spec) : measure_variant(p, spec);
  }

  void complete(const Parameters& p, CaseResult& result) const override {
    if (is_peer(get_text(p, "implementation")) || !result.numbers.contains("time_median")) return;
    const gpu::Variant& variant = gpu::find_variant(get_text(p, "implementation"));
    const gpu::DeviceInfo device = gpu::list_devices().at(0);
    if (with_backward(p)) {
      add_training_counts(variant, p, device, measured_ceilings(), result);
      return;
    }
    const CountedForward counted = add_counts(
        variant, p, device, analysis::find_machine(device.name, analysis::read_machines(machines_folder())),
        result.numbers);
    if (const auto all = result.texts.find(analysis::kLaunchesColumn); all != result.texts.end())
      all->second =
          analysis::launches_text(with_use(counted.launches, analysis::parse_launches(all->second)));
    add_roof(counted.work, counted.unit, result);
  }
};

const GpuAttention kGpuAttention;
const KindRegistration kGpuAttentionRegistration(kGpuAttention);

}  // namespace
}  // namespace splash::experiments
