#pragma once
// One query row during attention: the keys that take part, and what is known of each.

#include <cstdint>
#include <limits>
#include <vector>

#include "core/attention_spec.h"
#include "core/tensor.h"

namespace splash::cpu_ref {

struct RowAddress {
  int64_t batch, q_head, query;
};

inline RowAddress row_address(const AttentionShape& shape, int64_t row) {
  return {row / (shape.q_heads * shape.q_len), row / shape.q_len % shape.q_heads, row % shape.q_len};
}

inline int64_t row_index(const AttentionShape& shape, const RowAddress& at) {
  return (at.batch * shape.q_heads + at.q_head) * shape.q_len + at.query;
}

// Arrays of one length, parallel to `keys`. A thread reuses this memory from row to row.
template <class T>
struct Row {
  std::vector<int64_t> keys;                     // rising
  std::vector<T> scores;                         // never -inf, as masked keys are left out
  std::vector<T> p;                              // probabilities
  std::vector<T> g;                              // dL/dp, for keys with p other than 0
  std::vector<T> ds;                             // dL/dscore
  T sink = -std::numeric_limits<T>::infinity();  // the score without a value, -inf where there is none
  T p_sink = 0, ds_sink = 0;                     // its probability, and dL/dsink
  Eigen::RowVectorXd sum;  // of vectors of head_dim over the keys, which may be many: in double
  // A score is NaN or +inf, so every result of the row is NaN.
  bool poisoned = false;

  int64_t size() const { return static_cast<int64_t>(keys.size()); }
};

// Calls use(place) for the keys that have weight in the output: p is not 0, and dropout keeps it. A poisoned
// row is NaN whatever is dropped.
template <class T, class Use>
void for_each_weight(const AttentionSpec& spec, const RowAddress& at, const Row<T>& row, const Use& use) {
  const DropoutRow kept(spec.dropout, row_index(spec.shape, at));
  for (int64_t i = 0; i < row.size(); ++i) {
    if (row.p[i] != 0 && (row.poisoned || kept.keeps(row.keys[i]))) use(i);
  }
}

// By which dropout multiplies what it keeps.
template <class T>
T dropout_factor(const AttentionSpec& spec) {
  return static_cast<T>(1 / (1 - spec.dropout.rate));
}

// Throws InvalidArgument unless the spec is valid and Q, K, V have its extents.
template <class T>
void require_inputs(const AttentionSpec& spec, TensorView<const T> q, TensorView<const T> k,
                    TensorView<const T> v) {
  spec.validate();
  const AttentionShape& s = spec.shape;
  require_extents("q", q, s.batch, s.q_heads, s.q_len, s.head_dim);
  require_extents("k", k, s.batch, s.kv_heads, s.kv_len, s.head_dim);
  require_extents("v", v, s.batch, s.kv_heads, s.kv_len, s.head_dim);
}

// Computes the scores of one row's visible keys, before any selection; products and sums in T. It takes
// O(kv_len) memory, on which the memory bound of forward.h rests.
template <class T>
class RowScorer {
 public:
  RowScorer(const AttentionSpec& spec, TensorView<const T> q, TensorView<const T> k)
      : spec_(spec), scale_(static_cast<T>(spec.score_scale())), q_(q), k_(k) {}

  void operator()(const RowAddress& at, const RowMask& mask, Row<T>& row) {
    row.keys.clear();
    row.scores.clear();
    row.poisoned = false;
    row.sink = static_cast<T>(spec_.sink_of(at.q_head));
    const int64_t length = mask.end - mask.begin;
    if (length <= 0) return;
    using Vector = Eigen::Matrix<T, Eigen::Dynamic, 1>;
    const Eigen::Map<const Vector> query(q_.row(at.batch, at.q_head, at.query), spec_.shape.head_dim);
    const auto keys = k_.matrix(at.batch, spec_.shape.kv_head_of(at.q_head));
    products_.resize(length);
    products_.noalias() = keys.middleRows(mask.begin, length) * query;
    for (int64_t j = mask.begin; j < mask.end; ++j) {
      if (!mask.visible(j)) continue;
      const auto bias = static_cast<T>(spec_.bias.of(spec_.shape, at.q_head, at.query, j));
      const T score = spec_.capped(scale_ * products_[j - mask.begin]) + bias;
      if (score == -std::numeric_limits<T>::infinity()) continue;
      row.poisoned |= !(score < std::numeric_limits<T>::infinity());
      row.keys.push_back(j);
      row.scores.push_back(score);
    }
  }

 private:
  const AttentionSpec& spec_;
  T scale_;
  TensorView<const T> q_, k_;
  Eigen::Matrix<T, Eigen::Dynamic, 1> products_;
};

}  // namespace splash::cpu_ref
