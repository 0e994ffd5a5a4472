#pragma once
// Inputs, masks and comparisons that the attention tests share.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "core/attention_spec.h"
#include "core/random.h"
#include "core/tensor.h"
#include "cpu_ref/attention/backward.h"
#include "cpu_ref/attention/forward.h"

namespace splash::cpu_ref::test {

template <class T>
Tensor<T> random_tensor(int64_t batch, int64_t heads, int64_t length, int64_t dim, uint64_t seed,
                        double step = 0) {
  Tensor<T> tensor(batch, heads, length, dim);
  const CounterRandom random(seed);
  for (int64_t i = 0; i < tensor.size(); ++i) {
    const double x = random.normal(i);
    tensor.data()[i] = static_cast<T>(step > 0 ? step * std::round(x / step) : x);
  }
  return tensor;
}

// Standard normal numbers. With a step, they are rounded to its multiples: at step 1/4 and scale 1/4, the
// scores are exact in float, too, and some are equal.
template <class T>
AttentionInputs<T> random_inputs(const AttentionShape& s, uint64_t seed, double step = 0) {
  return {random_tensor<T>(s.batch, s.q_heads, s.q_len, s.head_dim, seed, step),
          random_tensor<T>(s.batch, s.kv_heads, s.kv_len, s.head_dim, seed + 1000, step),
          random_tensor<T>(s.batch, s.kv_heads, s.kv_len, s.head_dim, seed + 2000, step)};
}

template <class T>
Tensor<T> random_dout(const AttentionShape& s, uint64_t seed) {
  return random_tensor<T>(s.batch, s.q_heads, s.q_len, s.head_dim, seed + 3000);
}

// Quarters, for distances of which some lie farther.
inline DistanceBias random_bias(const AttentionShape& s, uint64_t seed, int64_t distances = 7,
                                int64_t first = -4) {
  DistanceBias bias{.distances = distances, .first = first};
  for (int64_t i = 0; i < s.q_heads * distances; ++i)
    bias.table.push_back(0.25 * std::round(4 * CounterRandom(seed).normal(i)));
  return bias;
}

// Scores are capped where some lie beyond the cap, and probabilities are dropped; with sinks where they are
// taken, from none to one that takes most, and a bias alike.
inline void modify(AttentionSpec& spec) {
  spec.softcap = 0.8;
  spec.dropout = {.rate = 0.3, .seed = 17};
  if (spec.mask.cu_seqlens_q == spec.mask.cu_seqlens_k) spec.bias = random_bias(spec.shape, 41);
  const bool any_key =
      spec.selection.kind == SelectionKind::all || spec.selection.kind == SelectionKind::top_k_row;
  if (spec.normalizer.kind != NormalizerKind::entmax || !any_key) return;
  constexpr double kSinks[] = {0.4, -std::numeric_limits<double>::infinity(), 1.1, -0.9};
  for (int64_t h = 0; h < spec.shape.q_heads; ++h) spec.sinks.push_back(kSinks[h % 4]);
}

struct NamedMask {
  std::string name;
  Mask mask;
};

inline std::vector<int64_t> random_positions(int64_t size, int64_t below, uint64_t seed) {
  std::vector<int64_t> positions(size);
  for (int64_t i = 0; i < size; ++i) positions[i] = static_cast<int64_t>(CounterRandom(seed).bits(i) % below);
  return positions;
}

// Tables of pairs of which some rows see none and some all.
inline std::vector<uint64_t> random_pairs(const AttentionShape& s, int64_t tables, uint64_t seed) {
  const CounterRandom random(seed);
  std::vector<uint64_t> pairs;
  const int64_t words = pair_words(s.kv_len);
  for (int64_t i = 0; i < tables * s.q_len * words; ++i) {
    const int64_t row = i / words, left = std::min(kKeysAWord, s.kv_len - i % words * kKeysAWord);
    const uint64_t kind = random.bits(2 * (row % 7 == 0 ? row * words : i) + 1) % 4;
    const uint64_t bits = kind == 0 ? 0 : kind == 1 ? ~uint64_t{0} : random.bits(2 * i);
    pairs.push_back(bits & pair_bits(nullptr, 0, left));
  }
  return pairs;
}

// Every part of a mask, and the conjunction of all. The middle packed sequence has no keys, and positions
// hide all keys from some rows.
inline std::vector<NamedMask> masks_for(const AttentionShape& s) {
  const std::vector<int64_t> cu_q{0, s.q_len / 3, 2 * s.q_len / 3, s.q_len};
  const std::vector<int64_t> cu_k{0, s.kv_len / 2, s.kv_len / 2, s.kv_len};
  const auto heads = s.batch * s.q_heads;
  const auto q_positions = random_positions(heads * s.q_len, 12, 1);
  const auto k_positions = random_positions(s.kv_len, 9, 2);  // one table for all: broadcast
  return {
      {"none", {}},
      {"causal", {.causal = true}},
      {"positions", {.q_positions = q_positions, .k_positions = random_positions(s.batch * s.kv_len, 9, 3)}},
      {"packed", {.cu_seqlens_q = cu_q, .cu_seqlens_k = cu_k}},
      {"packed causal", {.causal = true, .cu_seqlens_q = cu_q, .cu_seqlens_k = cu_k}},
      {"window", {.causal = true, .window = 4}},
      {"pairs", {.pairs = random_pairs(s, s.batch, 5)}},
      {"window to both sides", {.window = 3}},
      {"packed window", {.causal = true, .window = 2, .cu_seqlens_q = cu_q, .cu_seqlens_k = cu_k}},
      {"packed causal positions",
       {.causal = true,
        .q_positions = q_positions,
        .k_positions = k_positions,
        .cu_seqlens_q = cu_q,
        .cu_seqlens_k = cu_k}},
      {"pairs, causal positions",
       {.causal = true,
        .q_positions = q_positions,
        .k_positions = k_positions,
        .pairs = random_pairs(s, s.batch * s.q_heads, 6)}}};
}

// Two thirds of the keys, drawn separately for each tile of 4 queries; lists differ in length.
inline Selection random_shared_keys(const AttentionShape& s, uint64_t seed) {
  Selection selection{.kind = SelectionKind::shared_keys, .k_keep = s.kv_len, .block = 4};
  const int64_t lists = s.batch * s.kv_heads * selection.tiles(s);
  for (int64_t list = 0; list < lists; ++list) {
    for (int64_t key = 0; key < s.kv_len; ++key) {
      if (CounterRandom(seed).bits(list * s.kv_len + key) % 3 > 0)
        selection.keys.push_back(static_cast<int32_t>(key));
    }
    selection.keys.resize((list + 1) * s.kv_len, -1);
  }
  return selection;
}

// The margins are not round numbers, so that no score is exactly on a threshold.
inline std::vector<Selection> all_selections(const AttentionShape& shape) {
  return {{.kind = SelectionKind::all},
          {.kind = SelectionKind::top_k_row, .k_keep = 3},
          {.kind = SelectionKind::top_k_block, .k_keep = 2, .block = 5},
          {.kind = SelectionKind::significant_blocks, .block = 4, .margin = 0},
          {.kind = SelectionKind::significant_blocks, .block = 4, .margin = 0.2371},
          random_shared_keys(shape, 4)};
}

inline std::vector<Normalizer> all_normalizers() {
  std::vector<Normalizer> normalizers{{NormalizerKind::softmax, {1.5}}};
  for (const double alpha : {1.2, 1.5, 2.0, 2.5}) {
    normalizers.push_back({NormalizerKind::entmax, {alpha}});
    normalizers.push_back({NormalizerKind::power, {alpha}});
  }
  normalizers.push_back({NormalizerKind::power, {0.7}});
  normalizers.push_back({NormalizerKind::power_unnormalized, {2}});
  return normalizers;
}

inline std::string describe(const AttentionSpec& spec, const std::string& mask = "") {
  return fmt::format("{} alpha {}, {} block {} margin {}, mask {}, {}", to_string(spec.normalizer.kind),
                     spec.normalizer.alpha.front(), to_string(spec.selection.kind), spec.selection.block,
                     spec.selection.margin, mask, to_string(spec.shape));
}

template <class T>
ForwardResult<T> forward(const AttentionSpec& spec, const AttentionInputs<T>& in,
                         const ForwardOptions& options = {}) {
  return attention_forward<T>(spec, in.q, in.k, in.v, options);
}

template <class T>
Gradients<T> backward(const AttentionSpec& spec, const AttentionInputs<T>& in, const Tensor<T>& dout,
                      const BackwardOptions& options = {}) {
  return attention_backward<T>(spec, in.q, in.k, in.v, dout, options);
}

// Largest |a - b| / max(1, |b|); infinite if only one is NaN.
template <class T, class U>
double max_error(const Tensor<T>& a, const Tensor<U>& b) {
  double worst = a.size() == b.size() ? 0 : INFINITY;
  for (int64_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double x = a.data()[i], y = b.data()[i];
    if (std::isnan(x) && std::isnan(y)) continue;
    const double error = std::abs(x - y) / std::max(1.0, std::abs(y));
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  return worst;
}

template <class T>
bool same_bits(const Tensor<T>& a, const Tensor<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// The probabilities of a result, dense.
template <class T>
Tensor<double> dense_probabilities(const AttentionShape& s, const ForwardResult<T>& result) {
  Tensor<double> dense(s.batch, s.q_heads, s.q_len, s.kv_len);
  const SparseProbabilities<T>& sparse = *result.probabilities;
  for (int64_t r = 0; r < s.rows(); ++r) {
    for (int64_t e = sparse.row_offsets[r]; e < sparse.row_offsets[r + 1]; ++e) {
      dense.data()[r * s.kv_len + sparse.columns[e]] = sparse.values[e];
    }
  }
  return dense;
}

}  // namespace splash::cpu_ref::test
