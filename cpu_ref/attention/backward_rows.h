#pragma once
// The loop that all plain backwards share. They differ in the Jacobian of one row.

#include <type_traits>
#include <utility>

#include "core/parallel.h"
#include "cpu_ref/attention/backward.h"
#include "cpu_ref/attention/row.h"

namespace splash::cpu_ref {

// The products of one row's gradient with Q, K, V and dO. Sums over keys and over rows are in double.
template <class T>
class RowProducts {
 public:
  RowProducts(const AttentionSpec& spec, TensorView<const T> q, TensorView<const T> k, TensorView<const T> v,
              TensorView<const T> dout, Gradients<double>& gradients)
      : spec_(spec),
        shape_(spec.shape),
        scale_(static_cast<T>(spec.score_scale())),
        q_(q),
        k_(k),
        v_(v),
        dout_(dout),
        gradients_(gradients) {}

  // row.g = dL/dp_j: <dO, v_j> times dropout's factor, for keys that have weight in the output.
  void value_products(const RowAddress& at, Row<T>& row) const {
    const auto values = v_.matrix(at.batch, shape_.kv_head_of(at.q_head));
    const auto dout = vector(dout_, at);
    const T factor = dropout_factor<T>(spec_);
    row.g.assign(row.keys.size(), T(0));
    for_each_weight(spec_, at, row,
                    [&](int64_t i) { row.g[i] = factor * values.row(row.keys[i]).dot(dout); });
  }

  // dV_j += p_j dO, times dropout's factor.
  void add_value_gradient(const RowAddress& at, const Row<T>& row) const {
    auto dv = gradients_.dv.matrix(at.batch, shape_.kv_head_of(at.q_head));
    const auto dout = vector(dout_, at);
    const T factor = dropout_factor<T>(spec_);
    for_each_weight(spec_, at, row, [&](int64_t i) {
      dv.row(row.keys[i]) += (factor * row.p[i] * dout).template cast<double>();
    });
  }

  // dQ += scale ds_j k_j; dK_j += scale ds_j q, where ds is taken through the cap of scores. The bias is
  // added behind the cap: dbias += ds_j at the pair's distance, for each batch entry apart.
  void add_score_gradient(const RowAddress& at, const Row<T>& row) const {
    const int64_t kv_head = shape_.kv_head_of(at.q_head);
    const auto keys = k_.matrix(at.batch, kv_head);
    const auto query = vector(q_, at);
    auto dq = gradients_.dq.matrix(at.batch, at.q_head).row(at.query);
    auto dk = gradients_.dk.matrix(at.batch, kv_head);
    for (int64_t i = 0; i < row.size(); ++i) {
      if (row.ds[i] == 0) continue;
      T score = row.scores[i];
      if (spec_.bias.any()) {
        const int64_t entry = spec_.bias.index(shape_, at.q_head, at.query, row.keys[i]);
        score -= static_cast<T>(spec_.bias.table[entry]);
        gradients_.dbias[at.batch * spec_.bias.table.size() + entry] += row.ds[i];
      }
      const T ds = scale_ * row.ds[i] * spec_.cap_slope(score);
      dq += (ds * keys.row(row.keys[i])).template cast<double>();
      dk.row(row.keys[i]) += (ds * query).template cast<double>();
    }
  }

 private:
  using RowVector = Eigen::Matrix<T, 1, Eigen::Dynamic>;
  Eigen::Map<const RowVector> vector(TensorView<const T> t, const RowAddress& at) const {
    return Eigen::Map<const RowVector>(t.row(at.batch, at.q_head, at.query), shape_.head_dim);
  }

  const AttentionSpec& spec_;
  const AttentionShape& shape_;
  T scale_;
  TensorView<const T> q_, k_, v_, dout_;
  Gradients<double>& gradients_;
};

// Inputs must have been checked. backward(address, row, products) receives the scores of the visible keys,
// adds the row's gradients through `products` and returns dL/dalpha. One thread per key head takes its rows
// in order, so the sums do not depend on the number of threads.
template <class T, class Backward>
Gradients<T> backward_rows(const AttentionSpec& spec, TensorView<const T> q, TensorView<const T> k,
                           TensorView<const T> v, TensorView<const T> dout, const Backward& backward) {
  const AttentionShape& shape = spec.shape;
  Gradients<double> gradients;
  gradients.dq = Tensor<double>(shape.batch, shape.q_heads, shape.q_len, shape.head_dim);
  gradients.dk = Tensor<double>(shape.batch, shape.kv_heads, shape.kv_len, shape.head_dim);
  gradients.dv = gradients.dk;
  gradients.dalpha.assign(shape.q_heads, 0);
  gradients.dsinks.assign(shape.q_heads, 0);
  const size_t biases = spec.bias.table.size();
  gradients.dbias.assign(shape.batch * biases, 0);  // one table per batch entry, added in order below
  std::vector<double> dalpha(shape.batch * shape.q_heads, 0);  // one per (batch, head), added in order below
  std::vector<double> dsinks = dalpha;
  const RowProducts<T> products(spec, q, k, v, dout, gradients);

  parallel_for(shape.batch * shape.kv_heads, 1, [&](int64_t task) {
    const int64_t b = task / shape.kv_heads;
    const int64_t first_head = task % shape.kv_heads * shape.group();
    RowScorer<T> score(spec, q, k);
    Row<T> row;
    for (int64_t h = first_head; h < first_head + shape.group(); ++h) {
      for (int64_t i = 0; i < shape.q_len; ++i) {
        const RowAddress at{b, h, i};
        score(at, spec.mask.row(shape, b, h, i), row);
        dalpha[b * shape.q_heads + h] += backward(at, row, products);
        dsinks[b * shape.q_heads + h] += row.ds_sink;
      }
    }
  });
  for (size_t i = 0; i < dalpha.size(); ++i) {
    gradients.dalpha[i % shape.q_heads] += dalpha[i];
    gradients.dsinks[i % shape.q_heads] += dsinks[i];
  }
  for (size_t i = biases; i < gradients.dbias.size(); ++i) gradients.dbias[i % biases] += gradients.dbias[i];
  gradients.dbias.resize(biases);
  if constexpr (std::is_same_v<T, double>) {
    return gradients;
  } else {
    return {gradients.dq.cast<T>(),      gradients.dk.cast<T>(),      gradients.dv.cast<T>(),
            std::move(gradients.dalpha), std::move(gradients.dsinks), std::move(gradients.dbias)};
  }
}

}  // namespace splash::cpu_ref
