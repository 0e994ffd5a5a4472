#include "experiments/kinds/support/file_inputs.h"

#include <cmath>

#include <fmt/format.h>

#include "core/error.h"

namespace splash::experiments {
namespace {

const TensorFile& file_of(const Parameters& p) {
  return open_tensor_file(get_text(p, "input"));
}

void require_place(const Parameters& p, const char* parameter, const char* what, int64_t count) {
  const int64_t value = get_integer(p, parameter);
  if (value >= 0 && value < count) return;
  throw InvalidArgument(fmt::format("{} is {}; call {} of {} has the {} 0 to {}", parameter, value,
                                    get_integer(p, "call"), get_text(p, "input"), what, count - 1));
}

void require_length(const Parameters& p, const AttentionShape& shape) {
  const int64_t length = get_integer(p, "length");
  if (length == shape.kv_len) return;
  const std::string held = fmt::format("call {} of {} holds {} queries and {} keys", get_integer(p, "call"),
                                       get_text(p, "input"), shape.q_len, shape.kv_len);
  if (length < 1 || length > shape.kv_len)
    throw InvalidArgument(fmt::format("length is {}; {}", length, held));
  if (shape.q_len != shape.kv_len)
    throw InvalidArgument(
        fmt::format("length is {}; {}, and only calls of as many queries as keys are cut", length, held));
}

}  // namespace

void add_file_inputs(Parameters& set) {
  const std::string* input = text_if_set(set, "input");
  if (input == nullptr || !names_tensor_file(*input)) return;
  const TensorFile& file = open_tensor_file(*input);
  set.try_emplace("call", int64_t{0});
  set.try_emplace("layer", file.capture.layers.front());
  const analysis::CapturedCall& call = file.call(get_integer(set, "call"));
  const size_t layer = file.place_of(get_integer(set, "layer"));
  set.try_emplace("length", call.shape.kv_len);
  set.try_emplace("head_dim", call.shape.head_dim);
  set.try_emplace("scale", call.scale[layer]);
  set.try_emplace("causal", call.causal);
}

void check_file_inputs(const Parameters& p) {
  const TensorFile& file = file_of(p);
  const AttentionShape& shape = file.call(get_integer(p, "call")).shape;
  file.place_of(get_integer(p, "layer"));
  require_place(p, "batch_entry", "batch entries", shape.batch);
  require_place(p, "head", "query heads", shape.q_heads);
  if (const int64_t head_dim = get_integer(p, "head_dim"); head_dim != shape.head_dim)
    throw InvalidArgument(
        fmt::format("head_dim is {}; the heads of {} have {}", head_dim, file.name, shape.head_dim));
  require_length(p, shape);
  if (!std::isfinite(get_number(p, "scale"))) throw InvalidArgument("scale must be finite");
}

AttentionInputs<double> load_file_inputs(const Parameters& p) {
  const TensorFile& file = file_of(p);
  const int64_t call = get_integer(p, "call"), head = get_integer(p, "head");
  const AttentionShape& shape = file.call(call).shape;
  const auto layer = static_cast<int64_t>(file.place_of(get_integer(p, "layer")));
  const auto tensor = [&](const char* name, int64_t of_head, int64_t length) {
    const report::hdf5::Extents place{layer, get_integer(p, "batch_entry"), of_head};
    return first_rows(analysis::read_captured_tensor(file.hdf5, call, name, place), length).cast<double>();
  };
  const int64_t length = get_integer(p, "length"), key_head = shape.kv_head_of(head);
  return {tensor("q", head, std::min(length, shape.q_len)), tensor("k", key_head, length),
          tensor("v", key_head, length)};
}

std::string file_input_key(const Parameters& p) {
  return fmt::format("{} {} call {} layer {} entry {} head {} length {} scale {}", get_text(p, "input"),
                     file_of(p).hash, get_integer(p, "call"), get_integer(p, "layer"),
                     get_integer(p, "batch_entry"), get_integer(p, "head"), get_integer(p, "length"),
                     scale_of(p));
}

Parameters of_other_call(Parameters p, int64_t call) {
  const TensorFile& file = file_of(p);
  if (get_integer(p, "length") == file.call(get_integer(p, "call")).shape.kv_len)
    p["length"] = file.call(call).shape.kv_len;
  p["call"] = call;
  return p;
}

double scale_of(const Parameters& p) {
  const double scale = get_number(p, "scale");
  return scale != 0 ? scale : 1 / std::sqrt(static_cast<double>(get_integer(p, "head_dim")));
}

}  // namespace splash::experiments
