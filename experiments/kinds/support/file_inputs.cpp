#include "experiments/kinds/support/file_inputs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include <fmt/format.h>

#include "core/error.h"
#include "core/mask.h"
#include "core/parallel.h"

namespace splash::experiments {
namespace {

const TensorFile& file_of(const Parameters& p) {
  return open_tensor_file(get_text(p, "input"));
}

const AttentionShape& shape_of_call(const Parameters& p) {
  return file_of(p).call(get_integer(p, "call")).shape;
}

const char* tokens_name(const Parameters& p) {
  return p.contains("length") ? "length" : "n";
}

int64_t tokens_of(const Parameters& p) {
  return get_integer(p, tokens_name(p));
}

void require_place(const Parameters& p, const char* parameter, const char* what, int64_t count) {
  const int64_t value = get_integer(p, parameter);
  if (value >= 0 && value < count) return;
  throw InvalidArgument(fmt::format("{} is {}; call {} of {} has the {} 0 to {}", parameter, value,
                                    get_integer(p, "call"), get_text(p, "input"), what, count - 1));
}

void require_tokens(const Parameters& p, const AttentionShape& shape) {
  const int64_t length = tokens_of(p);
  if (length == shape.kv_len) return;
  const std::string held = fmt::format("call {} of {} holds {} queries and {} keys", get_integer(p, "call"),
                                       get_text(p, "input"), shape.q_len, shape.kv_len);
  if (length < 1 || length > shape.kv_len)
    throw InvalidArgument(fmt::format("{} is {}; {}", tokens_name(p), length, held));
  if (shape.q_len != shape.kv_len)
    throw InvalidArgument(fmt::format("{} is {}; {}, and only calls of as many queries as keys are cut",
                                      tokens_name(p), length, held));
}

// Checks everything but the head.
void check_layer_of_file(const Parameters& p) {
  const TensorFile& file = file_of(p);
  const AttentionShape& shape = shape_of_call(p);
  file.place_of(get_integer(p, "layer"));
  require_place(p, "batch_entry", "batch entries", shape.batch);
  if (const int64_t head_dim = get_integer(p, "head_dim"); head_dim != shape.head_dim)
    throw InvalidArgument(
        fmt::format("head_dim is {}; the heads of {} have {}", head_dim, file.name, shape.head_dim));
  require_tokens(p, shape);
  if (!std::isfinite(get_number(p, "scale"))) throw InvalidArgument("scale must be finite");
}

void require_heads(const Parameters& p, const char* parameter, int64_t held) {
  if (const int64_t value = get_integer(p, parameter); value != held)
    throw InvalidArgument(
        fmt::format("{} is {}; a layer of {} has {}", parameter, value, get_text(p, "input"), held));
}

// The first tokens of a tensor: of the layer and batch entry, and of one head or all.
Tensor<float> first_tokens(const Parameters& p, const char* name, int64_t tokens,
                           std::optional<int64_t> head) {
  const TensorFile& file = file_of(p);
  report::hdf5::Extents place{static_cast<int64_t>(file.place_of(get_integer(p, "layer"))),
                              get_integer(p, "batch_entry")};
  if (head) place.push_back(*head);
  return first_rows(analysis::read_captured_tensor(file.hdf5, get_integer(p, "call"), name, place), tokens);
}

std::string key_of_file(const Parameters& p, const std::string& heads) {
  return fmt::format("{} {} call {} layer {} entry {} {}length {} scale {}", get_text(p, "input"),
                     file_of(p).hash, get_integer(p, "call"), get_integer(p, "layer"),
                     get_integer(p, "batch_entry"), heads, tokens_of(p), scale_of(p));
}

int64_t queries_of(const Parameters& p) {
  return std::min(tokens_of(p), shape_of_call(p).q_len);
}

}  // namespace

void add_file_inputs(Parameters& set, const char* tokens) {
  if (!is_set_to_file(set)) return;
  const TensorFile& file = file_of(set);
  set.try_emplace("call", int64_t{0});
  set.try_emplace("layer", file.capture.layers.front());
  const analysis::CapturedCall& call = file.call(get_integer(set, "call"));
  const size_t layer = file.place_of(get_integer(set, "layer"));
  set.try_emplace(tokens, call.shape.kv_len);
  set.try_emplace("head_dim", call.shape.head_dim);
  set.try_emplace("scale", call.scale[layer]);
  set.try_emplace("causal", call.causal);
}

void add_file_layer(Parameters& set) {
  if (!is_set_to_file(set)) return;
  add_file_inputs(set, "n");
  set.try_emplace("heads", shape_of_call(set).q_heads);
  set.try_emplace("kv_heads", shape_of_call(set).kv_heads);
}

void add_file_scores(Parameters& set) {
  if (!is_set_to_file(set)) return;
  add_file_inputs(set, "n");
  set.try_emplace("rows", queries_of(set));
}

void check_file_inputs(const Parameters& p) {
  check_layer_of_file(p);
  require_place(p, "head", "query heads", shape_of_call(p).q_heads);
}

void check_file_layer(const Parameters& p) {
  check_layer_of_file(p);
  require_heads(p, "heads", shape_of_call(p).q_heads);
  require_heads(p, "kv_heads", shape_of_call(p).kv_heads);
}

void check_file_scores(const Parameters& p) {
  check_file_inputs(p);
  if (const int64_t rows = get_integer(p, "rows"); rows > queries_of(p))
    throw InvalidArgument(
        fmt::format("rows is {}; {} gives {} queries a head", rows, get_text(p, "input"), queries_of(p)));
}

void refuse_scale_of_no_file(const Parameters& p) {
  if (const double scale = get_number(p, "scale"); scale != 0 && !is_of_file(p))
    throw InvalidArgument(fmt::format(
        "scale is {}; only with a file as input can it be set, others have 1/sqrt(head_dim)", scale));
}

AttentionInputs<double> load_file_inputs(const Parameters& p) {
  const int64_t head = get_integer(p, "head"), key_head = shape_of_call(p).kv_head_of(head);
  return {first_tokens(p, "q", queries_of(p), head).cast<double>(),
          first_tokens(p, "k", tokens_of(p), key_head).cast<double>(),
          first_tokens(p, "v", tokens_of(p), key_head).cast<double>()};
}

AttentionInputs<float> load_file_layer(const Parameters& p) {
  return {first_tokens(p, "q", queries_of(p), {}), first_tokens(p, "k", tokens_of(p), {}),
          first_tokens(p, "v", tokens_of(p), {})};
}

Tensor<float> load_file_scores(const Parameters& p) {
  const AttentionInputs<double> in = load_file_inputs(p);
  const auto q = in.q.matrix(0, 0), k = in.k.matrix(0, 0);
  Mask mask;
  mask.causal = get_flag(p, "causal");
  const int64_t rows = get_integer(p, "rows");
  Tensor<float> scores(1, 1, rows, k.rows());
  parallel_for(rows, 1, [&](int64_t r) {
    const int64_t query = q.rows() - rows + r;
    const RowMask seen = mask.row(in.shape(), 0, 0, query);  // without positions: a range of keys
    float* const row = scores.row(0, 0, r);
    std::fill_n(row, k.rows(), -std::numeric_limits<float>::infinity());
    const Eigen::VectorXd found =
        scale_of(p) * (k.middleRows(seen.begin, seen.end - seen.begin) * q.row(query).transpose());
    std::ranges::transform(found, row + seen.begin, [](double score) { return static_cast<float>(score); });
  });
  return scores;
}

std::string file_input_key(const Parameters& p) {
  return key_of_file(p, fmt::format("head {} ", get_integer(p, "head")));
}

std::string file_layer_key(const Parameters& p) {
  return key_of_file(p, "all heads ");
}

std::string file_scores_key(const Parameters& p) {
  return fmt::format("{} causal {} rows {}", file_input_key(p), get_flag(p, "causal"),
                     get_integer(p, "rows"));
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
