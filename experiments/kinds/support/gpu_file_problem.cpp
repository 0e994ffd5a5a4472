#include "experiments/kinds/support/gpu_file_problem.h"

#include <cmath>

#include <fmt/format.h>

#include "core/error.h"
#include "experiments/kinds/support/file_inputs.h"

namespace splash::experiments {
namespace {

bool all_layers(const Parameters& p) {
  return get_integer(p, "layer") == kAllLayers;
}

const TensorFile& problem_file(const Parameters& p) {
  return open_tensor_file(get_text(p, "input"));
}

AttentionShape held_shape(const Parameters& p) {
  const TensorFile& file = problem_file(p);
  AttentionShape shape = file.call(get_integer(p, "call")).shape;
  if (all_layers(p)) shape.batch *= static_cast<int64_t>(file.capture.layers.size());
  return shape;
}

double held_scale(const Parameters& p) {
  const TensorFile& file = problem_file(p);
  const std::vector<double>& scale = file.call(get_integer(p, "call")).scale;
  if (!all_layers(p)) return scale[file.place_of(get_integer(p, "layer"))];
  for (const double other : scale) {
    if (other != scale.front())
      throw InvalidArgument(fmt::format("the layers of {} have scales from {} on to {}; set layer, or scale",
                                        file.name, scale.front(), other));
  }
  return scale.front();
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

}  // namespace

void add_file_problem(Parameters& set) {
  if (!is_set_to_file(set)) return;
  set.try_emplace("call", int64_t{0});
  set.try_emplace("layer", kAllLayers);
  const AttentionShape held = held_shape(set);
  set.try_emplace("batch", held.batch);
  set.try_emplace("q_heads", held.q_heads);
  set.try_emplace("kv_heads", held.kv_heads);
  add_lengths(set, held);
  set.try_emplace("head_dim", held.head_dim);
  if (!set.contains("scale")) set["scale"] = held_scale(set);
  const bool causal = problem_file(set).call(get_integer(set, "call")).causal;
  set.try_emplace("mask", std::string(causal ? "causal" : "none"));
}

void check_file_problem(const Parameters& p, const AttentionShape& asked) {
  AttentionShape held = held_shape(p);
  if (!all_layers(p)) problem_file(p).place_of(get_integer(p, "layer"));
  if (!std::isfinite(get_number(p, "scale"))) throw InvalidArgument("scale must be finite");
  const std::string whole = to_string(held);
  if (held.q_len == held.kv_len && asked.q_len == asked.kv_len && asked.q_len < held.q_len)
    held.q_len = held.kv_len = asked.q_len;
  if (held == asked) return;
  throw InvalidArgument(fmt::format("call {} of {} is {}; the case asks for {}", get_integer(p, "call"),
                                    get_text(p, "input"), whole, to_string(asked)));
}

AttentionInputs<float> load_file_problem(const Parameters& p) {
  const TensorFile& file = problem_file(p);
  report::hdf5::Extents place;
  if (!all_layers(p)) place.push_back(static_cast<int64_t>(file.place_of(get_integer(p, "layer"))));
  const auto tensor = [&](const char* name, const char* length) {
    return first_rows(analysis::read_captured_tensor(file.hdf5, get_integer(p, "call"), name, place),
                      get_integer(p, length));
  };
  return {tensor("q", "q_len"), tensor("k", "kv_len"), tensor("v", "kv_len")};
}

std::string file_problem_key(const Parameters& p) {
  return fmt::format("{} {} call {} layer {} scale {}", get_text(p, "input"), problem_file(p).hash,
                     get_integer(p, "call"), get_integer(p, "layer"), scale_of(p));
}

}  // namespace splash::experiments
