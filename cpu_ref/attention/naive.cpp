#include "cpu_ref/attention/naive.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

namespace splash::cpu_ref {
namespace {

using Array = Eigen::ArrayXd;
constexpr double kInf = std::numeric_limits<double>::infinity();

int64_t sequence_of(const std::vector<int64_t>& cu, int64_t place) {
  int64_t s = 0;
  while (cu[s + 1] <= place) ++s;
  return s;
}

int64_t position(const std::vector<int64_t>& table, int64_t row, int64_t rows_a_batch, int64_t length,
                 int64_t place) {
  const auto tables = static_cast<int64_t>(table.size()) / length;  // 1, batch, or batch * heads tables
  return table[(tables == 1 ? 0 : row * tables / rows_a_batch) * length + place];
}

bool visible(const AttentionSpec& spec, int64_t b, int64_t h, int64_t i, int64_t j) {
  const AttentionShape& s = spec.shape;
  const Mask& m = spec.mask;
  int64_t q_end = s.q_len, k_end = s.kv_len;
  if (!m.cu_seqlens_q.empty()) {
    const int64_t sequence = sequence_of(m.cu_seqlens_q, i);
    if (sequence_of(m.cu_seqlens_k, j) != sequence) return false;
    q_end = m.cu_seqlens_q[sequence + 1];
    k_end = m.cu_seqlens_k[sequence + 1];
  }
  if (m.causal && k_end - j < q_end - i) return false;
  const int64_t distance = (q_end - i) - (k_end - j);
  if (m.window > 0 && std::abs(distance) >= m.window) return false;
  const int64_t row = b * s.q_heads + h, rows = s.batch * s.q_heads;
  if (!m.pairs.empty()) {
    const int64_t words = (s.kv_len + 63) / 64,
                  tables = static_cast<int64_t>(m.pairs.size()) / (s.q_len * words);
    const int64_t table = tables == 1 ? 0 : row * tables / rows;
    if ((m.pairs[(table * s.q_len + i) * words + j / 64] >> j % 64) % 2 == 0) return false;
  }
  if (m.q_positions.empty()) return true;
  return position(m.k_positions, row, rows, s.kv_len, j) <= position(m.q_positions, row, rows, s.q_len, i);
}

// Bisects the probability of one key. For alpha <= 2 that is the largest key; above, it is the lowest key of
// the support, because the power is too steep there to compute with tau itself.
Array entmax(const Array& scores, double alpha, double* tau = nullptr) {
  const double a = alpha - 1;
  Array z = (a * (scores - scores.maxCoeff())).max(-2);  // keys 1 below the largest have p = 0, masked or not
  const auto shares = [&](double key, double p) -> Array {
    return (z - key + std::pow(p, a)).max(0).pow(1 / a);
  };
  double key = 0, low = 0, high = 1;
  if (alpha > 2) {
    std::vector<double> rising(z.begin(), z.end());
    std::sort(rising.begin(), rising.end());
    key = *std::partition_point(rising.begin(), rising.end(),
                                [&](double z_k) { return shares(z_k, 0).sum() >= 1; });
    z = (z < key).select(-kInf, z);
  }
  for (int step = 0; step < 60; ++step) {
    const double middle = (low + high) / 2;
    (shares(key, middle).sum() >= 1 ? high : low) = middle;
  }
  if (tau != nullptr) *tau = a * scores.maxCoeff() + key - std::pow(low, a);
  return shares(key, low);
}

Array normalize(const Array& scores, NormalizerKind kind, double alpha) {
  if (!(scores < kInf).all()) return Array::Constant(scores.size(), std::nan(""));
  if ((scores == -kInf).all()) return Array::Zero(scores.size());
  if (kind == NormalizerKind::entmax) return entmax(scores, alpha);
  Array w = scores.max(0).pow(alpha);
  if (kind == NormalizerKind::softmax) w = (scores - scores.maxCoeff()).exp();
  if (kind == NormalizerKind::power_unnormalized || w.sum() == 0) return w;
  return w / w.sum();
}

Array shared(const Array& scores, const AttentionSpec& spec, int64_t b, int64_t h, int64_t i) {
  Array kept = Array::Constant(scores.size(), -kInf);
  const int32_t* const keys = spec.selection.keys_of(spec.shape, b, h, i);
  for (int64_t n = 0; n < spec.selection.k_keep; ++n) {
    if (keys[n] >= 0) kept[keys[n]] = scores[keys[n]];
  }
  return kept;
}

// Sets the scores of keys that the selection drops to -inf.
Array select(const Array& scores, const AttentionSpec& spec, int64_t h, double alpha) {
  const Selection& selection = spec.selection;
  const bool softmax = spec.normalizer.kind == NormalizerKind::softmax;
  const bool significant = selection.kind == SelectionKind::significant_blocks;
  if (selection.kind == SelectionKind::all || (significant && softmax) || !(scores.abs() < kInf).any())
    return scores;
  double threshold = 0, to_z = 1;
  if (significant && spec.normalizer.kind == NormalizerKind::entmax) {
    entmax(scores, alpha, &threshold);
    to_z = alpha - 1;
  }
  const int64_t k_keep =
      selection.kind == SelectionKind::top_k_row ? selection.k_keep_of(h) : selection.k_keep;
  Array kept = scores;
  for (int64_t j = 0; j < scores.size(); ++j) {
    int64_t ahead = 0;  // keys of j's group that are kept before j
    double largest = -kInf;
    for (int64_t i = 0; i < scores.size(); ++i) {
      if (selection.kind != SelectionKind::top_k_row && i / selection.block != j / selection.block) continue;
      ahead += scores[i] > scores[j] || (scores[i] == scores[j] && i < j) ? 1 : 0;
      largest = std::max(largest, scores[i]);
    }
    const bool keep = significant ? to_z * largest > threshold + selection.margin : ahead < k_keep;
    if (!keep) kept[j] = -kInf;
  }
  return kept;
}

// Counts distances from the last query's place, the last key.
Array biases(const AttentionSpec& spec, int64_t h, int64_t i) {
  Array row(spec.shape.kv_len);
  const int64_t behind = spec.shape.q_len - 1 - i, last = spec.bias.first + spec.bias.distances - 1;
  for (int64_t j = 0; j < row.size(); ++j) {
    const int64_t distance = behind - (row.size() - 1 - j);
    const int64_t held = std::min(std::max(distance, spec.bias.first), last);
    row[j] = spec.bias.table[h * spec.bias.distances + held - spec.bias.first];
  }
  return row;
}

void drop(const AttentionSpec& spec, int64_t b, int64_t h, Eigen::MatrixXd& weights) {
  for (int64_t i = 0; i < weights.rows(); ++i) {
    const DropoutRow row(spec.dropout, (b * spec.shape.q_heads + h) * spec.shape.q_len + i);
    for (int64_t j = 0; j < weights.cols(); ++j)
      weights(i, j) = row.keeps(j) ? weights(i, j) / (1 - spec.dropout.rate) : 0;
  }
}

}  // namespace

NaiveForward naive_forward(const AttentionSpec& spec, const AttentionInputs<double>& inputs) {
  const AttentionShape& s = spec.shape;
  const bool by_index = spec.selection.kind == SelectionKind::shared_keys;
  NaiveForward result{Tensor<double>(s.batch, s.q_heads, s.q_len, s.head_dim),
                      Tensor<double>(s.batch, s.q_heads, s.q_len, s.kv_len)};
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.q_heads; ++h) {
      const int64_t kv_head = h * s.kv_heads / s.q_heads;
      const double alpha = spec.normalizer.kind == NormalizerKind::softmax ? 0 : spec.normalizer.alpha_of(h);
      const Eigen::MatrixXd scores =
          spec.score_scale() * inputs.q.matrix(b, h).lazyProduct(inputs.k.matrix(b, kv_head).transpose());
      for (int64_t i = 0; i < s.q_len; ++i) {
        Array row = scores.row(i);
        if (spec.softcap > 0) row = spec.softcap * (row / spec.softcap).tanh();
        if (spec.bias.any()) row += biases(spec, h, i);
        for (int64_t j = 0; j < s.kv_len; ++j) row[j] = visible(spec, b, h, i, j) ? row[j] : -kInf;
        Array kept(s.kv_len + 1);  // the last is the sink
        kept << (by_index ? shared(row, spec, b, h, i) : select(row, spec, h, alpha)),
            spec.sinks.empty() ? -kInf : spec.sinks[static_cast<size_t>(h)];
        result.probabilities.matrix(b, h).row(i) =
            normalize(kept, spec.normalizer.kind, alpha).head(s.kv_len).matrix();
      }
      Eigen::MatrixXd weights = result.probabilities.matrix(b, h);
      if (spec.dropout.rate > 0) drop(spec, b, h, weights);
      result.out.matrix(b, h) = weights * inputs.v.matrix(b, kv_head);
    }
  }
  return result;
}

}  // namespace splash::cpu_ref
