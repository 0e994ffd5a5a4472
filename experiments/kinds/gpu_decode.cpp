// One case: a step of exact entmax decoding over a paged cache, or a step of PyTorch's dense attention on as
// many keys. Measures time, error, the keys that were read, and counted bytes.

#include <algorithm>

#include <fmt/format.h>

#include "analysis/decode_bytes.h"
#include "core/error.h"
#include "experiments/kinds/support/counted_kernel.h"
#include "experiments/kinds/support/decode_problem.h"
#include "experiments/kinds/support/decode_rungs.h"
#include "experiments/kinds/support/file_inputs.h"
#include "experiments/kinds/support/gpu_attention_columns.h"
#include "experiments/kinds/support/timing.h"
#include "experiments/kinds/support/torch_peers.h"
#include "experiments/runner/ceilings.h"
#include "gpu/device.h"
#include "gpu/engine/work.h"

namespace splash::experiments {
namespace {

constexpr const char* kOwnPackage = "torch-splash";  // a copy of 4 bits
constexpr const char* kDecodePeers[] = {"torch-cudnn", "torch-flash", kOwnPackage};
constexpr const char* kRungsOnly = "known for this project's steps only";

bool is_decode_peer(const std::string& implementation) {
  return std::ranges::find(kDecodePeers, implementation) != std::end(kDecodePeers);
}

// A sample is a replay of a graph of rounds; a round is two steps over each cache.
gpu::TimingOptions rounds(const Parameters& p) {
  return {.method = gpu::TimingMethod::graph, .samples = get_integer(p, "samples")};
}

void add_decode_counts(const gpu::decode::Steps& steps, const gpu::decode::StepProblem& problem,
                       const gpu::decode::StepResults& results, int64_t l2_bytes, CaseResult& result) {
  const analysis::DecodeCounts sums = decode_counts(problem.shape, steps.lengths(), results);
  const analysis::DecodeBytes bytes =
      analysis::decode_bytes(problem.shape, problem.dtype, problem.page_size, problem.bits, l2_bytes, sums);
  const auto of_screened = [&](double keys) { return keys / std::max(sums.screened, 1.0); };
  result.numbers["keys_screened"] = sums.screened;
  result.numbers["candidates_share"] = of_screened(sums.candidates);
  result.numbers["rescored_share"] = of_screened(sums.rescored);
  result.numbers["fell_back_share"] = sums.fell_back / sums.keys;
  result.numbers["support_mean"] = sums.support / static_cast<double>(problem.shape.rows());
  result.numbers["copies_bytes"] = bytes.copies;
  result.numbers["start_bytes"] = bytes.start;
  result.numbers["lists_bytes"] = bytes.lists;
  result.numbers["rescored_bytes"] = bytes.rescored;
  result.numbers["fallback_bytes"] = bytes.fallback;
  result.numbers["values_bytes"] = bytes.values;
  result.numbers["dram_bytes_counted"] = bytes.total();
}

CaseResult measure_rung(const Parameters& p, const DecodeRung& rung) {
  CaseResult result;
  result.texts["idea"] = rung.idea;
  const gpu::Stream stream;
  const gpu::decode::StepProblem problem = step_problem(p, rung.bits);
  const auto given = captured_step(p);
  gpu::decode::Steps steps(problem, stream, given ? &*given : nullptr);
  steps.settle();
  steps.poison();
  double launches = 0;
  steps.enqueue(0, [&](const char* /*kernel*/) { ++launches; });
  const gpu::decode::StepResults results = steps.results();
  const DecodeErrors errors = check_heads(steps, problem, results, get_integer(p, "checked_heads"));
  result.numbers["nmse"] = errors.squared / errors.reference;
  result.numbers["max_error"] = errors.max_error;
  result.numbers["tau_error"] = errors.tau_error;
  result.numbers["wrong_supports"] = static_cast<double>(errors.wrong_supports);
  result.numbers["rows_checked"] = static_cast<double>(errors.rows);
  add_decode_counts(steps, problem, results, gpu::list_devices().at(stream.device()).l2_bytes, result);
  result.numbers["bits"] = rung.bits;
  result.numbers["launches"] = launches;
  result.numbers["caches"] = static_cast<double>(steps.caches());
  result.numbers["copy_memory_bytes"] = static_cast<double>(steps.copy_bytes());
  result.numbers["peak_memory_bytes"] =
      static_cast<double>(steps.workspace_bytes() + bytes_of(problem.dtype) * results.out.size());
  time_call([&] { steps.enqueue_round(); }, stream, rounds(p), steps.steps_of_round(), result);
  return result;
}

CaseResult measure_in_torch(const Parameters& p) {
  CaseResult result;
  const AttentionShape shape = decode_shape(p);
  const std::string backend = get_text(p, "implementation").substr(std::string("torch-").size());
  const DecodePeerResult peer = run_torch_gpu_decode({.backend = backend,
                                                      .dtype = get_text(p, "dtype"),
                                                      .shape = shape,
                                                      .alpha = get_number(p, "alpha"),
                                                      .page_size = get_integer(p, "page_size"),
                                                      .scale = scale_of(p),
                                                      .query_variance = get_number(p, "query_variance"),
                                                      .seed = get_integer(p, "seed"),
                                                      .timing = rounds(p)});
  if (!add_peer_run(peer.run, result)) return result;
  result.numbers["nmse"] = peer.nmse;
  result.numbers["max_error"] = peer.max_error;
  result.numbers["caches"] = peer.caches;
  if (get_text(p, "implementation") != kOwnPackage)
    result.numbers["dram_bytes_counted"] =
        analysis::dense_decode_bytes(shape, dtype_from_string(get_text(p, "dtype")));
  return result;
}

std::vector<report::ColumnInfo> decode_columns() {
  constexpr const char* kNotRun = "the case was not run (column version says why)";
  constexpr const char* kNotCounted =
      "the case was not run (column version says why), or by the Python package, which tells no counts";
  std::vector<report::ColumnInfo> columns = time_columns(kNotRun);
  const auto measured = [&](auto... words) { columns.push_back(taken(words...)); };
  const auto counted = [&](const char* name, const char* units, const char* long_name, const char* formula,
                           const char* reason = kRungsOnly) {
    measured(name, units, long_name, formula, reason);
    columns.back().reproducible = true;
  };
  counted("caches", "1", "caches that the steps rotate over, so that L2 is cold",
          "3 L2 / bytes of one cache that every step reads, rounded up, 1 to 64: the low-bit copies, without "
          "them the keys; of peers keys and values",
          kNotRun);
  counted("keys_screened", "1", "keys that the screen saw",
          "sum over sequences, key heads and eights of rows");
  counted("candidates_share", "1", "keys listed, of those screened", "candidates / keys_screened");
  counted("rescored_share", "1", "keys scored exactly at the end, of those screened",
          "keys of any row's list after the last bound / keys_screened");
  counted(
      "fell_back_share", "1", "keys that the dense pass scored, of all",
      "keys of the units with rows that took the dense pass (broad in the last step, or lists overflowed) / "
      "keys of all units");
  counted("support_mean", "1", "keys with p > 0 a row", "mean of the supports of all rows");
  counted(
      "copies_bytes", "bytes", "counted bytes of the screen",
      "keys screened: codes, margin, and a page's share of scales and zero points; without copies the key");
  counted("start_bytes", "bytes", "counted bytes of the keys that no screen sees",
          "the first keys, the last ones and the rest of their pages, in full");
  counted("lists_bytes", "bytes", "counted bytes of the lists",
          "candidates: a key's number and a float a row, written and read; 0 if L2 holds them");
  counted("rescored_bytes", "bytes", "counted bytes of the keys scored exactly at the end", "in full");
  counted("fallback_bytes", "bytes", "counted bytes of keys that the dense pass scored", "in full");
  counted("values_bytes", "bytes", "counted bytes of the values",
          "a value a row and key of its support; of a unit that took the dense pass at most one a key");
  counted(
      "dram_bytes_counted", "bytes", "bytes that DRAM must deliver",
      "counted: the sum of copies, start, lists, rescored, fallback, values, queries and results; of peers "
      "all keys and values, queries and results",
      kNotRun);
  columns.push_back(floor_column());
  measured("roof_share", "1", "share of the roof", "floor_time / time_median", kNotCounted);
  counted("copy_memory_bytes", "bytes", "memory of one cache's low-bit copies", "allocated");
  measured("peak_memory_bytes", "bytes", "device memory beyond caches and queries at the peak of a step",
           "workspace and results, or of PyTorch's allocator", kNotRun);
  measured("nmse", "1", "error of the output, relative",
           "||out - ref||^2 / ||ref||^2, ref: float64 for the keys as the device has them, checked_heads key "
           "heads; of peers one head, of softmax",
           kNotRun);
  measured("max_error", "1", "largest error of the output", "max |out - ref| of the same", kNotRun);
  measured("tau_error", "1", "largest error of the threshold", "max |tau - ref| of the same", kRungsOnly);
  measured("wrong_supports", "1", "checked rows with another support than the oracle's",
           "support below the number of keys with z > tau + e or above that with z > tau - e, e = 1e-5 (1 + "
           "|max z|)",
           kRungsOnly);
  counted("rows_checked", "1", "rows that were held against the oracle", "checked_heads group q_len");
  counted("bits", "1", "bits of the low-bit copy", "0: none");
  counted("launches", "1", "kernels a step", "counted while one is enqueued");
  columns.push_back({.name = "idea",
                     .units = "text",
                     .long_name = "what is new in this rung",
                     .formula = "declared",
                     .is_text = true,
                     .missing_reason = kRungsOnly});
  for (report::ColumnInfo& info : clock_columns(kRungsOnly)) columns.push_back(std::move(info));
  for (report::ColumnInfo& info : run_columns()) columns.push_back(std::move(info));
  return columns;
}

class GpuDecode : public Kind {
 public:
  std::string name() const override { return "gpu-decode"; }
  std::string summary() const override {
    return "time, error, keys read and counted bytes of a step of exact entmax decoding, beside dense "
           "attention";
  }

  std::vector<ParameterInfo> parameters() const override {
    using enum ParameterType;
    std::vector<std::string> implementations{"decode/*"};
    for (const DecodeRung& rung : decode_rungs()) implementations.emplace_back(rung.name);
    implementations.insert(implementations.end(), std::begin(kDecodePeers), std::end(kDecodePeers));
    std::vector<ParameterInfo> list{
        {"implementation", text, std::string("decode/2-four-bits"), "", "what is timed", implementations},
        {"samples", integer, int64_t{40}, "1", "timed samples, fewer where a step takes long", {}},
        {"checked_heads",
         integer,
         int64_t{4},
         "1",
         "key heads, spread over the sequences, whose rows are held against the oracle",
         {}}};
    for (ParameterInfo& info : decode_parameters()) list.push_back(std::move(info));
    return list;
  }

  std::vector<report::ColumnInfo> columns() const override { return decode_columns(); }
  bool needs_device() const override { return true; }

  std::vector<Value> choices(const std::string& parameter, const Value& value) const override {
    if (parameter != "implementation" || value != Value(std::string("decode/*"))) return {value};
    std::vector<Value> rungs;
    for (const DecodeRung& rung : decode_rungs()) rungs.emplace_back(std::string(rung.name));
    return rungs;
  }

  void add_from_inputs(Parameters& set) const override { add_captured_step(set); }

  void check(const Parameters& p) const override {
    const std::string& implementation = get_text(p, "implementation");
    const DecodeRung* const rung = find_decode_rung(implementation);
    if (rung == nullptr && !is_decode_peer(implementation))
      throw InvalidArgument("decode/* stands for every rung in a list of [axes] or [zip] alone");
    for (const char* name : {"samples", "checked_heads"}) require_one(p, name);
    check_decode(p, rung != nullptr ? rung->bits : 0);
    if (implementation == kOwnPackage && is_of_file(p))
      throw InvalidArgument("torch-splash draws Gaussian tensors; it takes no other input");
  }

  Parameters used(const Parameters& p) const override {
    Parameters kept = p;
    kept["scale"] = scale_of(p);
    const std::string& implementation = get_text(p, "implementation");
    if (is_decode_peer(implementation)) {
      for (const char* name : {"checked_heads", "input", "call", "layer"}) kept.erase(name);
      if (implementation != kOwnPackage) {
        for (const char* name : {"alpha", "page_size"}) kept.erase(name);
      }
    } else if (is_of_file(p)) {
      for (const char* name : {"query_variance", "seed"}) kept.erase(name);
    } else {
      for (const char* name : {"call", "layer"}) kept.erase(name);
    }
    return kept;
  }

  std::string input_hash(const Parameters& p) const override { return decode_key(p); }

  CaseResult evaluate(const Parameters& p) const override {
    const DecodeRung* const rung = find_decode_rung(get_text(p, "implementation"));
    return rung != nullptr ? measure_rung(p, *rung) : measure_in_torch(p);
  }

  void complete(const Parameters& p, CaseResult& result) const override {
    if (!result.numbers.contains("time_median") || !result.numbers.contains("dram_bytes_counted")) return;
    gpu::Work work;
    work.dram_bytes = result.numbers.at("dram_bytes_counted");
    const double seconds = result.numbers.at("time_median");
    const double floor = floor_seconds(work, get_text(p, "dtype"), seconds, measured_ceilings());
    result.numbers["floor_time"] = floor;
    result.numbers["roof_share"] = floor / seconds;
  }
};

const GpuDecode kGpuDecode;
const KindRegistration kGpuDecodeRegistration(kGpuDecode);

}  // namespace
}  // namespace splash::experiments
