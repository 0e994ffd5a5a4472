#include "experiments/kinds/support/gpu_file_problem.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>
#include <vector>

#include <fmt/format.h>

#include "core/dtype.h"
#include "core/error.h"
#include "core/parallel.h"
#include "experiments/kinds/support/file_inputs.h"

namespace splash::experiments {
namespace {

bool all_layers(const Parameters& p) {
  return get_integer(p, "layer") == kAllLayers;
}

const TensorFile& problem_file(const Parameters& p) {
  return open_tensor_file(get_text(p, "input"));
}

std::vector<int64_t> asked_calls(const Parameters& p) {
  const int64_t asked = get_integer(p, "call");
  std::vector<int64_t> calls{asked};
  if (asked == kAllCalls) {
    calls.resize(problem_file(p).capture.calls.size());
    std::iota(calls.begin(), calls.end(), int64_t{0});
  }
  return calls;
}

// What all calls that are asked for have in common; its batch is of them all.
struct Held {
  AttentionShape shape{};
  double scale = 0;
  bool causal = false;
};

// Without a scale set, layers must have one scale.
Held held_by(const Parameters& p, bool scale_is_set) {
  const TensorFile& file = problem_file(p);
  const std::vector<int64_t> calls = asked_calls(p);
  const analysis::CapturedCall& first = file.call(calls.front());
  const size_t layer = all_layers(p) ? 0 : file.place_of(get_integer(p, "layer"));
  Held held{first.shape, first.scale.at(layer), first.causal};
  for (const int64_t number : calls) {
    const analysis::CapturedCall& call = file.call(number);
    if (!(call.shape == first.shape) || call.causal != first.causal)
      throw InvalidArgument(
          fmt::format("the calls 0 and {} of {} differ in extents or mask; set call", number, file.name));
    for (size_t i = 0; i < call.scale.size() && !scale_is_set; ++i) {
      if ((all_layers(p) || i == layer) && call.scale[i] != held.scale)
        throw InvalidArgument(
            fmt::format("the layers of {} have scales from {} on to {}; set layer, or scale", file.name,
                        held.scale, call.scale[i]));
    }
  }
  held.shape.batch *= static_cast<int64_t>(calls.size() * (all_layers(p) ? file.capture.layers.size() : 1));
  return held;
}

// If only one of the two lengths is set and the file has as many queries as keys, it sets both.
void add_lengths(Parameters& set, const AttentionShape& held) {
  const auto q_len = set.find("q_len"), kv_len = set.find("kv_len");
  const bool square = held.q_len == held.kv_len, has_q = q_len != set.end(), has_k = kv_len != set.end();
  const Value queries = square && has_k ? kv_len->second : Value(held.q_len);
  const Value keys = square && has_q ? q_len->second : Value(held.kv_len);
  set.try_emplace("q_len", queries);
  set.try_emplace("kv_len", keys);
}

// Nothing where the file holds no method.
const std::optional<analysis::CapturedHeads>& heads_in(const TensorFile& file, int64_t layer,
                                                       const AttentionShape& shape) {
  using Place = std::tuple<std::string, int64_t, int64_t, int64_t>;
  static std::map<Place, std::optional<analysis::CapturedHeads>> known;
  const Place place{file.name, layer, shape.q_heads, shape.kv_heads};
  const auto found = known.find(place);
  if (found != known.end()) return found->second;
  return known.emplace(place, analysis::read_captured_heads(file.hdf5, layer, shape)).first->second;
}

void check_alpha_of_file(const Parameters& p) {
  if (!get_flag(p, kAlphaOfFile)) return;
  if (get_text(p, "normalizer") != "entmax")
    throw InvalidArgument(
        fmt::format("{} is of entmax; the normalizer is {}", kAlphaOfFile, get_text(p, "normalizer")));
  if (all_layers(p))
    throw InvalidArgument(
        fmt::format("{} takes one layer at a time, for each has its own; set layer", kAlphaOfFile));
  file_heads(p);
}

// Queries times their head's factor.
void multiply(Tensor<float>& q, const std::vector<double>& factor, Dtype dtype, const std::string& name) {
  const int64_t head_size = q.length() * q.dim();
  parallel_for(q.batch() * q.heads(), 1, [&](int64_t head) {
    const auto by = static_cast<float>(factor[static_cast<size_t>(head % q.heads())]);
    float* const numbers = q.data() + head * head_size;
    for (int64_t i = 0; i < head_size; ++i) numbers[i] = by * static_cast<float>(round_to(dtype, numbers[i]));
  });
  if (!std::all_of(q.data(), q.data() + q.size(), [](float number) { return std::isfinite(number); }))
    throw InvalidArgument(fmt::format("queries of {} times their factors are not finite in float32", name));
}

}  // namespace

const analysis::CapturedHeads& file_heads(const Parameters& p) {
  const TensorFile& file = problem_file(p);
  const int64_t layer = get_integer(p, "layer");
  file.place_of(layer);  // throws if it is not held
  const auto& heads = heads_in(file, layer, file.call(asked_calls(p).front()).shape);
  if (!heads)
    throw InvalidArgument(
        fmt::format("{} takes a file with the attribute method, as of a converted model; {} has none",
                    kAlphaOfFile, file.name));
  if (heads->kind != "entmax")
    throw InvalidArgument(fmt::format("{} is of entmax; the method of {} has {} in layer {}", kAlphaOfFile,
                                      file.name, heads->kind, layer));
  return *heads;
}

void add_file_problem(Parameters& set) {
  if (!is_set_to_file(set)) return;
  set.try_emplace("call", int64_t{0});
  set.try_emplace("layer", kAllLayers);
  const Held held = held_by(set, set.contains("scale"));
  set.try_emplace("batch", held.shape.batch);
  set.try_emplace("q_heads", held.shape.q_heads);
  set.try_emplace("kv_heads", held.shape.kv_heads);
  add_lengths(set, held.shape);
  set.try_emplace("head_dim", held.shape.head_dim);
  set.try_emplace("scale", held.scale);
  set.try_emplace("mask", std::string(held.causal ? "causal" : "none"));
}

void check_file_problem(const Parameters& p, const AttentionShape& asked) {
  AttentionShape held = held_by(p, true).shape;
  if (!std::isfinite(get_number(p, "scale"))) throw InvalidArgument("scale must be finite");
  const std::string whole = to_string(held);
  if (held.q_len == held.kv_len && asked.q_len == asked.kv_len && asked.q_len < held.q_len)
    held.q_len = held.kv_len = asked.q_len;
  if (held == asked) return check_alpha_of_file(p);
  const int64_t call = get_integer(p, "call");
  throw InvalidArgument(fmt::format(
      "{} of {} {}; the case asks for {}", call == kAllCalls ? "all calls" : fmt::format("call {}", call),
      get_text(p, "input"), (call == kAllCalls ? "are " : "is ") + whole, to_string(asked)));
}

AttentionInputs<float> load_file_problem(const Parameters& p) {
  const TensorFile& file = problem_file(p);
  report::hdf5::Extents place;
  if (!all_layers(p)) place.push_back(static_cast<int64_t>(file.place_of(get_integer(p, "layer"))));
  const std::vector<int64_t> calls = asked_calls(p);
  const auto tensor = [&](const char* name, const char* length) {
    Tensor<float> all;
    for (size_t i = 0; i < calls.size(); ++i) {
      const Tensor<float> one = first_rows(analysis::read_captured_tensor(file.hdf5, calls[i], name, place),
                                           get_integer(p, length));
      if (i == 0)
        all = Tensor<float>(static_cast<int64_t>(calls.size()) * one.batch(), one.heads(), one.length(),
                            one.dim());
      std::copy_n(one.data(), one.size(), all.data() + static_cast<int64_t>(i) * one.size());
    }
    return all;
  };
  AttentionInputs<float> inputs{tensor("q", "q_len"), tensor("k", "kv_len"), tensor("v", "kv_len")};
  if (get_flag(p, kAlphaOfFile))
    multiply(inputs.q, file_heads(p).factor, dtype_from_string(get_text(p, "dtype")), file.name);
  return inputs;
}

std::string file_problem_key(const Parameters& p) {
  const bool of_file = get_flag(p, kAlphaOfFile);
  return fmt::format("{} {} call {} layer {} scale {}{}", get_text(p, "input"), problem_file(p).hash,
                     get_integer(p, "call"), get_integer(p, "layer"), scale_of(p),
                     of_file ? fmt::format(" {} {}", kAlphaOfFile, get_text(p, "dtype")) : "");
}

}  // namespace splash::experiments
