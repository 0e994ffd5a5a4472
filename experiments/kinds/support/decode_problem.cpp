#include "experiments/kinds/support/decode_problem.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "core/error.h"
#include "core/parallel.h"
#include "cpu_ref/decode/row.h"
#include "experiments/kinds/support/file_inputs.h"
#include "experiments/runner/value.h"

namespace splash::experiments {
namespace {

using gpu::decode::GivenTensors;
using gpu::decode::StepProblem;
using gpu::decode::StepResults;
using gpu::decode::Steps;

static_assert(analysis::kDecodeUnitRows == gpu::decode::kRows);

const TensorFile& step_file(const Parameters& p) {
  return open_tensor_file(get_text(p, "input"));
}

const analysis::CapturedCall& step_call(const Parameters& p) {
  return step_file(p).call(get_integer(p, "call"));
}

void check_captured(const Parameters& p) {
  const AttentionShape asked = decode_shape(p);
  const analysis::CapturedCall& call = step_call(p);
  const AttentionShape& held = call.shape;
  step_file(p).place_of(get_integer(p, "layer"));
  const bool heads = held.group() == asked.group() && (held.kv_heads == 1 || held.kv_heads == asked.kv_heads);
  if (!call.causal || !heads || held.kv_len != asked.kv_len || held.head_dim != asked.head_dim ||
      held.q_len < 2 * asked.q_len)
    throw InvalidArgument(
        fmt::format("call {} of {} is {}, {}; a step takes a causal call of as many keys, at least twice "
                    "as many queries, and the same heads or one key head of the same group, not {}",
                    get_integer(p, "call"), get_text(p, "input"), to_string(held),
                    call.causal ? "causal" : "not causal", to_string(asked)));
}

// The last queries of held heads, [batch, q_heads, q_len, head_dim]: of sequence b, those that end `back(b)`
// before the last.
template <class Back>
Tensor<float> queries_of(const Tensor<float>& held, const AttentionShape& s, const Back& back) {
  Tensor<float> q(s.batch, s.q_heads, s.q_len, s.head_dim);
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.q_heads; ++h)
      std::copy_n(held.row(0, h % held.heads(), held.length() - back(b) - s.q_len), s.q_len * s.head_dim,
                  q.row(b, h, 0));
  }
  return q;
}

// Keys that are in the support whatever |z - tau| <= kSupportEpsilon decides, and those that may be.
std::pair<int64_t, int64_t> support_range(const cpu_ref::DecodeRow& row, const cpu_ref::PagedCache& cache,
                                          double tau, double maximum) {
  const double epsilon = kSupportEpsilon * (1 + std::abs(maximum));
  std::pair<int64_t, int64_t> range;
  for (int64_t key = 0; key < row.end; ++key) {
    const double z = row.z(cache, key);
    range.first += z > tau + epsilon ? 1 : 0;
    range.second += z > tau - epsilon ? 1 : 0;
  }
  return range;
}

}  // namespace

std::vector<ParameterInfo> decode_parameters() {
  using enum ParameterType;
  return {
      {"batch", integer, int64_t{1}, "1", "sequences", {}},
      {"q_heads", integer, int64_t{32}, "1", "query heads", {}},
      {"kv_heads", integer, int64_t{8}, "1", "key heads", {}},
      {"q_len", integer, int64_t{1}, "1", "queries a sequence, causal among themselves", {}},
      {"kv_len", integer, int64_t{2048}, "1", "keys a sequence", {}},
      {"head_dim", integer, int64_t{128}, "1", "head dimension", {}},
      {"dtype", text, std::string("bfloat16"), "", "element type", {"float16", "bfloat16"}},
      {"page_size", integer, int64_t{64}, "1", "keys a page of the cache", {}},
      {"alpha", number, 1.5, "1", "alpha of entmax", {}},
      {"query_variance", number, 6.0, "1", "variance of the Gaussian queries", {}},
      {"seed", integer, int64_t{1}, "1", "seed of the inputs", {}},
      {"input",
       text,
       std::string("gaussian"),
       "",
       "Gaussian q, k and v, or a causal model's: every sequence holds the text, each up to a token less. "
       "Two steps take turns, these queries' and that of the q_len tokens before (Gaussian: of others), so "
       "that none remembers its own keys",
       {"gaussian", "smollm2", "smollm2-converted"},
       tensor_file_endings()},
      {"call", integer, int64_t{0}, "1", "call of the model, of those that a file holds, from 0", {}},
      {"layer", integer, int64_t{0}, "1", "layer of a file; its first unless set", {}},
      {"scale",
       number,
       0.0,
       "1",
       "scores are scale <q, k>; of a file, its own unless set; 0: 1/sqrt(head_dim)",
       {}},
  };
}

void add_captured_step(Parameters& set) {
  if (!is_set_to_file(set)) return;
  const TensorFile& file = open_tensor_file(get_text(set, "input"));
  set.try_emplace("call", int64_t{0});
  set.try_emplace("layer", file.capture.layers.front());
  const analysis::CapturedCall& call = file.call(get_integer(set, "call"));
  set.try_emplace("q_heads", call.shape.q_heads);
  set.try_emplace("kv_heads", call.shape.kv_heads);
  set.try_emplace("kv_len", call.shape.kv_len);
  set.try_emplace("head_dim", call.shape.head_dim);
  set.try_emplace("scale", call.scale[file.place_of(get_integer(set, "layer"))]);
}

void check_decode(const Parameters& p, int bits) {
  gpu::decode::check_problem(step_problem(p, bits));
  if (const double alpha = get_number(p, "alpha"); !(alpha >= 1.01 && alpha <= 2))
    throw InvalidArgument(fmt::format("alpha is {}; a step of decode takes 1.01 to 2", alpha));
  if (!(scale_of(p) > 0) || !std::isfinite(scale_of(p)))
    throw InvalidArgument(fmt::format("scale is {}; it must be positive", scale_of(p)));
  if (!(get_number(p, "query_variance") >= 0))
    throw InvalidArgument(
        fmt::format("query_variance is {}; it must be at least 0", get_number(p, "query_variance")));
  if (is_of_file(p)) check_captured(p);
}

AttentionShape decode_shape(const Parameters& p) {
  return {get_integer(p, "batch"), get_integer(p, "q_heads"), get_integer(p, "kv_heads"),
          get_integer(p, "q_len"), get_integer(p, "kv_len"),  get_integer(p, "head_dim")};
}

StepProblem step_problem(const Parameters& p, int bits) {
  return {.shape = decode_shape(p),
          .dtype = dtype_from_string(get_text(p, "dtype")),
          .page_size = static_cast<int>(std::clamp<int64_t>(get_integer(p, "page_size"), 0, 1 << 20)),
          .bits = bits,
          .alpha = get_number(p, "alpha"),
          .scale = scale_of(p),
          .query_variance = get_number(p, "query_variance"),
          .seed = static_cast<uint64_t>(get_integer(p, "seed"))};
}

std::string decode_key(const Parameters& p) {
  std::string key = get_text(p, "input");
  if (is_of_file(p))
    key = fmt::format("{} {} call {} layer {} scale {}", key, step_file(p).hash, get_integer(p, "call"),
                      get_integer(p, "layer"), scale_of(p));
  return fmt::format("{} {} {} variance {} seed {}", key, to_string(decode_shape(p)), get_text(p, "dtype"),
                     get_number(p, "query_variance"), get_integer(p, "seed"));
}

std::optional<GivenTensors> captured_step(const Parameters& p) {
  if (!is_of_file(p)) return {};
  const AttentionShape s = decode_shape(p);
  const TensorFile& file = step_file(p);
  const auto held = [&](const char* name) {
    const auto layer = static_cast<int64_t>(file.place_of(get_integer(p, "layer")));
    return analysis::read_captured_tensor(file.hdf5, get_integer(p, "call"), name, {layer, 0});
  };
  const Tensor<float> q = held("q");
  const auto back = [&](int64_t sequence) { return sequence % (q.length() - 2 * s.q_len + 1); };
  const auto back_before = [&](int64_t sequence) { return back(sequence) + s.q_len; };
  GivenTensors given{queries_of(q, s, back), queries_of(q, s, back_before), held("k"), held("v"), {}};
  for (int64_t b = 0; b < s.batch; ++b) given.lengths.push_back(static_cast<int32_t>(s.kv_len - back(b)));
  return given;
}

void DecodeErrors::add(const DecodeErrors& other) {
  squared += other.squared;
  reference += other.reference;
  max_error = std::fmax(max_error, other.max_error);
  tau_error = std::fmax(tau_error, other.tau_error);
  rows += other.rows;
  wrong_supports += other.wrong_supports;
}

DecodeErrors DecodedHead::errors(double alpha, double scale) const {
  cpu_ref::PagedCache cache{.page_size = k.length(), .kv_heads = 1, .head_dim = k.dim()};  // one page
  cache.keys.assign(k.data(), k.data() + k.size());
  cache.values.assign(v.data(), v.data() + v.size());
  cache.table = {0};
  cache.lengths = {static_cast<int32_t>(k.length())};
  const cpu_ref::DecodeInputs inputs{q, {alpha}, {scale}};
  const cpu_ref::DecodeRows expected = cpu_ref::decode(cache, inputs);
  DecodeErrors errors;
  // NaN, which poison leaves, is as wrong as can be.
  const auto larger = [](double a, double b) { return b <= a ? a : std::isnan(b) ? INFINITY : b; };
  for (int64_t i = 0; i < out.size(); ++i) {
    const double reference = expected.out.data()[i], error = std::abs(out.data()[i] - reference);
    errors.max_error = larger(errors.max_error, error);
    errors.squared += error * error;
    errors.reference += reference * reference;
  }
  for (int64_t h = 0; h < q.heads(); ++h) {
    for (int64_t i = 0; i < q.length(); ++i) {
      const auto at = static_cast<size_t>(h * q.length() + i);
      errors.tau_error = larger(errors.tau_error, std::abs(static_cast<double>(tau[at]) - expected.tau[at]));
      const auto [least, most] = support_range(cpu_ref::DecodeRow(cache, inputs, 0, h, i), cache,
                                               expected.tau[at], expected.maximum[at]);
      errors.wrong_supports += support[at] < least || support[at] > most ? 1 : 0;
      ++errors.rows;
    }
  }
  return errors;
}

DecodeErrors check_heads(const Steps& steps, const StepProblem& problem, const StepResults& results,
                         int64_t heads) {
  const AttentionShape& s = problem.shape;
  const Tensor<double> q = steps.queries();
  const int64_t pairs = s.batch * s.kv_heads, count = std::min(heads, pairs);
  const int64_t rows = s.group() * s.q_len;  // of a pair, contiguous
  std::vector<DecodedHead> decoded;
  for (int64_t n = 0; n < count; ++n) {
    const int64_t pair = count == 1 ? 0 : n * (pairs - 1) / (count - 1);
    auto [k, v] = steps.head(pair / s.kv_heads, pair % s.kv_heads);
    DecodedHead& head = decoded.emplace_back();
    head.k = std::move(k);
    head.v = std::move(v);
    for (const auto& [from, to] : {std::pair{&q, &head.q}, std::pair{&results.out, &head.out}}) {
      *to = Tensor<double>(1, s.group(), s.q_len, s.head_dim);
      std::copy_n(from->data() + pair * rows * s.head_dim, rows * s.head_dim, to->data());
    }
    head.tau.assign(results.tau.begin() + pair * rows, results.tau.begin() + (pair + 1) * rows);
    head.support.assign(results.support.begin() + pair * rows, results.support.begin() + (pair + 1) * rows);
  }
  std::vector<DecodeErrors> errors(decoded.size());
  const double alpha = static_cast<float>(problem.alpha), scale = static_cast<float>(problem.scale);
  parallel_for(count, 1, [&](int64_t n) {
    errors[static_cast<size_t>(n)] = decoded[static_cast<size_t>(n)].errors(alpha, scale);
  });
  DecodeErrors sum;
  for (const DecodeErrors& each : errors) sum.add(each);
  return sum;
}

analysis::DecodeCounts decode_counts(const AttentionShape& shape, std::span<const int32_t> lengths,
                                     const StepResults& results) {
  analysis::DecodeCounts sums;
  const size_t units = results.counts.size() / 4;
  const auto rows = static_cast<size_t>(shape.group() * shape.q_len);  // of a key head
  const size_t tiles = units * rows / std::max<size_t>(results.support.size(), 1);
  for (size_t unit = 0; unit < units; ++unit) {
    const int32_t* const counts = results.counts.data() + 4 * unit;
    const double keys = lengths[unit * lengths.size() / units];  // units stand by sequence
    const size_t pair = unit / tiles, first = unit % tiles * gpu::decode::kRows;
    const auto begin = results.support.begin() + static_cast<std::ptrdiff_t>(pair * rows + first);
    const auto of_unit = static_cast<std::ptrdiff_t>(std::min<size_t>(gpu::decode::kRows, rows - first));
    const double support = std::accumulate(begin, begin + of_unit, 0.0);
    const bool fell_back = counts[3] != 0;
    sums.keys += keys;
    sums.screened += counts[0];
    sums.candidates += counts[1];
    sums.rescored += counts[2];
    if (!fell_back || counts[0] > 0) sums.began += keys;
    if (fell_back) sums.fell_back += keys;
    sums.values += fell_back ? std::min(support, keys) : support;
    sums.support += support;
  }
  return sums;
}

}  // namespace splash::experiments
