// gpu_bench: times variants on one problem, for the author of a rung. It only prints; `splash run` records.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "analysis/samples.h"
#include "analysis/statistics.h"
#include "core/cu_seqlens.h"
#include "core/error.h"
#include "core/workload.h"
#include "gpu/benchmark/profile.h"
#include "gpu/benchmark/timing.h"
#include "gpu/decode/benchmark/steps.h"
#include "gpu/engine/attention.h"
#include "gpu/engine/work.h"
#include "gpu/entmax/attention.h"

namespace {

using namespace splash;
using namespace splash::gpu;

struct Options {
  std::vector<std::string> variants{""};
  std::vector<int64_t> shape{1, 8, 8, 512, 512, 64};
  std::string dtype = "bfloat16", normalizer = "softmax", selection = "all", tuning = "default", documents;
  double alpha = 1.5, share = 0.1, query_variance = 6;
  int64_t k_keep = 8, block = 64, samples = 30, seed = 1, window = 0;
  bool causal = false, positions = false, graph = false, cold = false, backward = false;
  bool profile = false, portable = false;
  int decode_bits = -1, page_size = 64;  // -1: no step of decode
  bool fp8 = false;
};

void declare(CLI::App& app, Options& o) {
  app.add_option("--variants", o.variants, "what the ids start with, comma-separated")->delimiter(',');
  app.add_option("--shape", o.shape, "batch,q_heads,kv_heads,q_len,kv_len,head_dim")
      ->delimiter(',')
      ->expected(6);
  app.add_option("--dtype", o.dtype, "float32, float16, bfloat16");
  app.add_option("--normalizer", o.normalizer, "softmax, entmax, power, power_unnormalized");
  app.add_option("--alpha", o.alpha, "of entmax and power");
  app.add_option("--selection", o.selection, "all, top_k_row, top_k_block, shared_keys");
  app.add_option("--k-keep", o.k_keep, "keys kept");
  app.add_option("--block", o.block, "keys a block, or queries a tile of shared_keys");
  app.add_option("--share", o.share, "of the visible keys, for shared_keys");
  app.add_option("--query-variance", o.query_variance, "of the Gaussian queries");
  app.add_option("--samples", o.samples, "timed samples");
  app.add_option("--seed", o.seed, "of the inputs");
  app.add_flag("--causal", o.causal, "hide later keys");
  app.add_option("--window", o.window, "hide later keys, and all but the last so many before them");
  app.add_option("--documents", o.documents,
                 "lengths of packed documents, hide later keys and other documents' (8x2048, 4096+2x512)");
  app.add_flag("--positions", o.positions, "hide later keys by positions 0, 1, 2, ...");
  app.add_flag("--graph", o.graph, "replay a graph instead of timing lone calls");
  app.add_flag("--backward", o.backward, "exact entmax with its gradients in place of the variants");
  app.add_option("--decode", o.decode_bits,
                 "a step of decode in place of the variants, with a copy of 4 or 8 bits, or none (0)")
      ->check(CLI::IsMember({0, 4, 8}));
  app.add_option("--page-size", o.page_size, "keys a page of its cache")->needs("--decode");
  app.add_flag("--fp8", o.fp8, "its keys and values in float8 (e4m3), without a copy")->needs("--decode");
  app.add_option("--tuning", o.tuning, "its knobs, as KNOB=VALUE,KNOB=VALUE (gpu/entmax/tuning.h)")
      ->needs("--backward");
  app.add_flag("--portable", o.portable, "its portable path where Hopper's would be taken")
      ->needs("--backward");
  app.add_flag("--profile", o.profile,
               "one call for ncu --profile-from-start off, nothing is timed; kascade/0 to 2 also say "
               "what share of their warps' cycles each phase takes")
      ->excludes("--backward");
  app.add_flag("--cold", o.cold, "flush L2 before each call");
}

AttentionSpec spec_of(const Options& o) {
  AttentionSpec spec;
  spec.shape = {o.shape[0], o.shape[1], o.shape[2], o.shape[3], o.shape[4], o.shape[5]};
  spec.normalizer = {normalizer_from_string(o.normalizer), {o.alpha}};
  spec.mask.causal = o.causal || o.window > 0;
  spec.mask.window = o.window;
  if (!o.documents.empty()) {
    spec.mask.causal = true;
    spec.mask.cu_seqlens_q = cu_seqlens_from_string(o.documents, spec.shape.q_len);
    spec.mask.cu_seqlens_k = cu_seqlens_from_string(o.documents, spec.shape.kv_len);
  }
  if (o.positions) {
    for (int64_t i = 0; i < spec.shape.q_len; ++i) spec.mask.q_positions.push_back(i);
    for (int64_t i = 0; i < spec.shape.kv_len; ++i) spec.mask.k_positions.push_back(i);
  }
  spec.selection = {.kind = selection_from_string(o.selection), .k_keep = o.k_keep, .block = o.block};
  if (spec.selection.kind == SelectionKind::shared_keys)
    spec.selection = make_shared_keys(spec.shape, spec.mask, o.block, o.share, static_cast<uint64_t>(o.seed));
  return spec;
}

void print_kernels(const Plan& plan) {
  for (const KernelLaunch& kernel : plan.kernels) {
    const KernelResources r = kernel_resources(kernel);
    fmt::print(
        "    {:28} {:8} blocks x {:4} threads, {:3} registers, {} B spilled, {:6} B shared, {} blocks an "
        "SM\n",
        kernel.name, kernel.blocks, kernel.threads, r.registers, r.local_bytes,
        kernel.shared_bytes + r.static_shared, r.blocks_per_multiprocessor);
  }
}

// Prints where the warps' time goes, for a variant that has an instrumented twin.
void print_phases(const Variant& variant, const std::vector<uint64_t>& cycles) {
  const double all = static_cast<double>(std::accumulate(cycles.begin(), cycles.end(), uint64_t{0}));
  for (std::size_t i = 0; i < cycles.size(); ++i)
    fmt::print("    {:28} {:5.1f} %\n", variant.profile.phases[i],
               100 * static_cast<double>(cycles[i]) / all);
}

TimingOptions timing_of(const Options& o) {
  return {.cache = o.cold ? CacheState::cold : CacheState::warm,
          .method = o.graph ? TimingMethod::graph : TimingMethod::events,
          .samples = o.samples};
}

void print_timing(const char* name, const Timing& timing, int64_t times = 1) {
  std::vector<double> seconds = timing.seconds;
  for (double& each : seconds) each /= static_cast<double>(times);
  const auto interval = analysis::median_interval(seconds);
  std::printf("  %-34s %10.2f us [%.2f, %.2f]  %s\n", name, 1e6 * analysis::median(seconds),
              1e6 * interval.low, 1e6 * interval.high,
              analysis::why_spoilt(seconds, {timing.clock_before_hz, timing.clock_after_hz}).c_str());
}

// Times a step of decode as `splash run experiments/decode` does, and each of its kernels alone.
void bench_decode(const Options& o, const AttentionShape& shape) {
  const Stream stream;
  const decode::Steps steps({.shape = shape,
                             .dtype = dtype_from_string(o.dtype),
                             .page_size = o.page_size,
                             .bits = o.decode_bits,
                             .alpha = o.alpha,
                             .scale = 1 / std::sqrt(static_cast<double>(shape.head_dim)),
                             .query_variance = o.query_variance,
                             .seed = static_cast<uint64_t>(o.seed),
                             .fp8 = o.fp8},
                            stream);
  std::printf("%s, %s%s, alpha %g, %d bits: %lld caches, copies of %.0f MB, workspace %.0f MB\n",
              to_string(shape).c_str(), o.dtype.c_str(), o.fp8 ? " over float8" : "", o.alpha, o.decode_bits,
              static_cast<long long>(steps.caches()), 1e-6 * static_cast<double>(steps.copy_bytes()),
              1e-6 * static_cast<double>(steps.workspace_bytes()));
  if (o.profile) {
    steps.settle();
    return profile_call([&] { steps.enqueue(0); }, stream);
  }
  print_timing("a step, of a graph",
               time_on_device([&] { steps.enqueue_round(); }, stream,
                              {.method = TimingMethod::graph, .samples = o.samples}),
               steps.steps_of_round());
  for (const auto& [kernel, seconds] : steps.kernel_seconds(o.samples))
    std::printf("    %-32s %10.2f us\n", kernel.c_str(), 1e6 * seconds);
  double counts[4] = {}, support = 0;
  const decode::StepResults results = steps.results();
  for (std::size_t i = 0; i < results.counts.size(); ++i) counts[i % 4] += results.counts[i];
  for (const int32_t keys : results.support) support += keys;
  std::printf(
      "    candidates %.2f %%, scored exactly %.2f %% of the keys screened; %.1f keys a row; %.0f of %zu "
      "units fell back\n",
      100 * counts[1] / std::max(counts[0], 1.0), 100 * counts[2] / std::max(counts[0], 1.0),
      support / static_cast<double>(shape.rows()), counts[3], results.counts.size() / 4);
}

// Times forward alone, then forward with backward.
void bench_backward(const Options& o, const AttentionSpec& spec, const Stream& stream, const DeviceTensor& q,
                    const DeviceTensor& k, const DeviceTensor& v, const DeviceTensor& out) {
  const Dtype dtype = dtype_from_string(o.dtype);
  const auto host =
      make_inputs<float>({.seed = static_cast<uint64_t>(o.seed) + 1, .query_variance = 1}, spec.shape);
  const DeviceTensor d_out = DeviceTensor::from(stream, dtype, host.q), d_q(stream, dtype, q.view().extents),
                     d_k(stream, dtype, k.view().extents), d_v(stream, dtype, v.view().extents);
  const auto path = o.portable ? entmax::ForwardPath::portable : entmax::ForwardPath::fastest;
  entmax::EntmaxAttention attention(spec, dtype, stream, 0, path, entmax::tuning_from_string(o.tuning));
  const auto forward = [&] { attention.forward(q.view(), k.view(), v.view(), out.view()); };
  const auto both = [&] {
    forward();
    attention.backward(q.view(), k.view(), v.view(), d_out.view(), d_q.view(), d_k.view(), d_v.view(),
                       nullptr, entmax::StoreCheck::trust);
  };
  forward();
  attention.ensure_stored();
  const auto print = [&](const char* name, const std::function<void()>& call) {
    print_timing(name, time_on_device(call, stream, timing_of(o)));
  };
  print("forward", forward);
  print("forward and backward", both);
  std::printf("  entries stored: %lld\n", static_cast<long long>(attention.support_entries()));
}

void bench(const Options& o) {
  const AttentionSpec spec = spec_of(o);
  spec.validate();
  if (o.decode_bits >= 0) return bench_decode(o, spec.shape);
  const Dtype dtype = dtype_from_string(o.dtype);
  const Stream stream;
  const DeviceInfo device = list_devices().at(stream.device());
  const auto host = make_inputs<float>(
      {.seed = static_cast<uint64_t>(o.seed), .query_variance = o.query_variance}, spec.shape);
  const DeviceTensor q = DeviceTensor::from(stream, dtype, host.q),
                     k = DeviceTensor::from(stream, dtype, host.k),
                     v = DeviceTensor::from(stream, dtype, host.v), out(stream, dtype, q.view().extents);
  std::printf("%s, %s, %s\n", to_string(spec.shape).c_str(), o.dtype.c_str(),
              o.graph  ? "graph"
              : o.cold ? "cold"
                       : "warm");
  if (o.backward) {
    bench_backward(o, spec, stream, q, k, v, out);
    return;
  }
  for (const Variant* variant : all_variants()) {
    const std::string id = variant->id();
    if (std::none_of(o.variants.begin(), o.variants.end(), [&](auto& word) { return id.starts_with(word); }))
      continue;
    const std::string reason = unsupported_reason(*variant, spec, dtype, device);
    if (!reason.empty()) {
      std::printf("  %-34s %s\n", id.c_str(), reason.c_str());
      continue;
    }
    const PreparedAttention attention(*variant, spec, dtype, stream);
    const auto call = [&] { attention.enqueue(q.view(), k.view(), v.view(), out.view()); };
    if (o.profile) {
      profile_call(call, stream);
      std::printf("  %-34s profiled\n", id.c_str());
      print_kernels(attention.plan());
      print_phases(*variant, attention.profile(q.view(), k.view(), v.view(), out.view()));
      continue;
    }
    const Timing timing = time_on_device(call, stream, timing_of(o));
    const double median = analysis::median(timing.seconds);
    const auto interval = analysis::median_interval(timing.seconds);
    const Work work = count_work(*variant, spec, dtype, attention.plan(), device);
    std::printf(
        "  %-34s %10.2f us [%.2f, %.2f]  useful %.1f executed %.1f TFLOP/s  %s\n", id.c_str(), 1e6 * median,
        1e6 * interval.low, 1e6 * interval.high, 1e-12 * work.useful_flops / median,
        1e-12 * work.executed_flops / median,
        analysis::why_spoilt(timing.seconds, {timing.clock_before_hz, timing.clock_after_hz}).c_str());
    print_kernels(attention.plan());
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Times kernel variants on one problem");
  declare(app, options);
  CLI11_PARSE(app, argc, argv);
  try {
    bench(options);
  } catch (const Error& error) {
    std::fprintf(stderr, "gpu_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
