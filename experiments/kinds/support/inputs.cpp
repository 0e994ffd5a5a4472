#include "experiments/kinds/support/inputs.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/error.h"
#include "core/workload.h"
#include "experiments/kinds/support/file_inputs.h"
#include "experiments/kinds/support/lru_cache.h"
#include "experiments/kinds/support/shipped_captures.h"
#include "report/hdf5/file.h"

namespace splash::experiments {
namespace {

namespace hdf5 = report::hdf5;

constexpr const char* kCaptured = "minilm";

bool is_captured(const Parameters& p) {
  return get_text(p, "input") == kCaptured;
}

Workload drawn_workload(const Parameters& p) {
  Workload workload;
  workload.kind = workload_from_string(get_text(p, "input"));
  workload.seed = static_cast<uint64_t>(get_integer(p, "seed"));
  workload.query_variance = get_number(p, "query_variance");
  return workload;
}

AttentionShape synthetic_shape(const Parameters& p) {
  const int64_t length = get_integer(p, "length");
  return {.q_len = length, .kv_len = length, .head_dim = get_integer(p, "head_dim")};
}

// [layer, head, token, head_dim] of a captured text.
const hdf5::Extents& captured_extents(const std::string& text) {
  static std::map<std::string, hdf5::Extents> known;
  auto& extents = known[text];
  if (extents.empty()) extents = hdf5::read_extents(captures_path(), text + "/q", 4);
  return extents;
}

Tensor<double> captured_tensor(const Parameters& p, const std::string& name) {
  const auto array = hdf5::read_floats(captures_path(), get_text(p, "text") + "/" + name,
                                       {get_integer(p, "layer"), get_integer(p, "head")}, 4);
  Tensor<double> tensor(1, 1, array.extents.at(0), array.extents.at(1));
  std::copy(array.values.begin(), array.values.end(), tensor.data());
  return tensor;
}

void require_index(const char* name, int64_t value, int64_t count, const std::string& text) {
  if (value >= 0 && value < count) return;
  throw InvalidArgument(
      fmt::format("{} is {}; the capture of {} has {} 0 to {}", name, value, text, name, count - 1));
}

}  // namespace

std::string captures_path() {
  return shipped_capture(kCaptured);
}

const std::string& captures_hash() {
  static const std::string hash = file_hash("the captured inputs", captures_path());
  return hash;
}

std::vector<ParameterInfo> input_parameters() {
  using enum ParameterType;
  return {
      {"input",
       text,
       std::string(kCaptured),
       "",
       "captured model (minilm: an encoder; smollm2: a decoder), synthetic workload, or a file of q, k and v",
       {kCaptured, "smollm2", "gaussian", "clustered", "local", "sink", "ties"},
       tensor_file_endings()},
      {"text", text, std::string("gpl-3"), "", "captured text (minilm only)", {"gpl-3", "gfdl-1.3"}},
      {"layer", integer, int64_t{0}, "1", "layer of the captured model, from 0; of a file, its first", {}},
      {"head", integer, int64_t{0}, "1", "query head of the captured layer, from 0", {}},
      {"call", integer, int64_t{0}, "1", "call of the model, of those that a file holds, from 0", {}},
      {"batch_entry", integer, int64_t{0}, "1", "batch entry of a file's call, from 0", {}},
      {"scale",
       number,
       0.0,
       "1",
       "scores are scale <q, k>, of a file: its own unless set; 0, and elsewhere: 1/sqrt(head_dim)",
       {}},
      {"length",
       integer,
       int64_t{1024},
       "1",
       "tokens: of a capture as they are, of a file all or the first ones, else as asked for",
       {}},
      {"head_dim", integer, int64_t{64}, "1", "head dimension: of a capture as it is, else as asked for", {}},
      {"seed", integer, int64_t{1}, "1", "seed of a synthetic workload", {}},
      {"query_variance", number, 6.0, "1", "variance of synthetic queries; 6 is AdaSplash's", {}},
      {"causal",
       flag,
       false,
       "1",
       "whether a query sees only itself and earlier keys; of a file, as it says unless set",
       {}},
  };
}

std::vector<ParameterInfo> input_parameters(std::span<const char* const> names) {
  std::vector<ParameterInfo> list = input_parameters();
  std::erase_if(
      list, [&](const ParameterInfo& info) { return std::ranges::find(names, info.name) == names.end(); });
  return list;
}

void HeadKind::check(const Parameters& p) const {
  if (is_of_file(p)) return check_file_inputs(p);
  refuse_scale_of_no_file(p);
  if (!is_captured(p)) {
    drawn_workload(p).validate();
    synthetic_shape(p).validate();
    return;
  }
  const std::string& text = get_text(p, "text");
  const hdf5::Extents& extents = captured_extents(text);
  require_index("layer", get_integer(p, "layer"), extents.at(0), text);
  require_index("head", get_integer(p, "head"), extents.at(1), text);
}

Parameters HeadKind::used(const Parameters& p) const {
  Parameters kept = p;
  if (is_of_file(p)) {
    kept["scale"] = scale_of(p);
    for (const char* name : {"text", "seed", "query_variance"}) kept.erase(name);
    return kept;
  }
  for (const char* name : {"call", "batch_entry", "scale"}) kept.erase(name);
  if (is_captured(p)) {
    const hdf5::Extents& extents = captured_extents(get_text(p, "text"));
    kept["length"] = extents.at(2);
    kept["head_dim"] = extents.at(3);
    for (const char* name : {"seed", "query_variance"}) kept.erase(name);
    return kept;
  }
  for (const char* name : {"text", "layer", "head"}) kept.erase(name);
  const WorkloadKind kind = drawn_workload(p).kind;
  if (kind == WorkloadKind::sink || kind == WorkloadKind::ties) kept.erase("query_variance");
  return kept;
}

std::string input_key(const Parameters& p) {
  if (is_of_file(p)) return file_input_key(p);
  if (is_captured(p)) {
    return fmt::format("minilm {} {} {}", get_text(p, "text"), get_integer(p, "layer"),
                       get_integer(p, "head"));
  }
  return fmt::format("{} {} {} {} {}", get_text(p, "input"), get_integer(p, "length"),
                     get_integer(p, "head_dim"), get_integer(p, "seed"), get_number(p, "query_variance"));
}

std::string HeadKind::input_hash(const Parameters& p) const {
  return is_captured(p) ? input_key(p) + " " + captures_hash() : input_key(p);
}

std::shared_ptr<const AttentionInputs<double>> load_inputs(const Parameters& p) {
  static LruCache<AttentionInputs<double>> cache(int64_t{64} << 20);
  const auto make = [&]() -> AttentionInputs<double> {
    if (is_of_file(p)) return load_file_inputs(p);
    if (!is_captured(p)) return make_inputs<double>(drawn_workload(p), synthetic_shape(p));
    return {captured_tensor(p, "q"), captured_tensor(p, "k"), captured_tensor(p, "v")};
  };
  return cache.get(input_key(p), make, [](const AttentionInputs<double>& in) {
    return static_cast<int64_t>(sizeof(double)) * (in.q.size() + in.k.size() + in.v.size());
  });
}

AttentionSpec input_spec(const Parameters& p, const AttentionInputs<double>& inputs) {
  AttentionSpec spec;
  spec.shape = inputs.shape();
  if (is_of_file(p)) spec.scale = scale_of(p);
  spec.mask.causal = get_flag(p, "causal");
  return spec;
}

std::vector<std::string> load_tokens(const std::string& text) {
  return hdf5::read_texts(captures_path(), text + "/token");
}

}  // namespace splash::experiments
