#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "core/error.h"
#include "core/parallel.h"
#include "cpu_ref/attention/blocked_sum.h"
#include "cpu_ref/attention/given_threshold.h"
#include "cpu_ref/attention/screened.h"
#include "cpu_ref/attention/screening/blocks.h"
#include "cpu_ref/entmax/gradient.h"

namespace splash::cpu_ref {
namespace {

// The support by column, for one (batch, key head): entries [offsets[j], offsets[j+1]) are column j's, in row
// order.
struct ColumnSupport {
  std::vector<int64_t> offsets;  // [kv_len + 1]
  std::vector<int64_t> entries;  // [nnz]: index into the row-wise arrays
  std::vector<int64_t> rows;     // [nnz]: row (batch * q_heads + head) * q_len + query of that entry
};

float dot(const float* a, const float* b, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t d = 0; d < n; ++d) sum += a[d] * b[d];
  return sum;
}

class SupportBackward {
 public:
  SupportBackward(const AttentionSpec& spec, const ScreenedForward& forward, TensorView<const float> q,
                  TensorView<const float> k, TensorView<const float> v, TensorView<const float> dout,
                  std::span<const float> tau_offsets)
      : shape_(spec.shape),
        spec_(spec),
        p_(forward.probabilities),
        weights_(p_.values),
        tau_(forward.tau),
        q_(q),
        k_(k),
        v_(v),
        dout_(dout),
        tau_offsets_(tau_offsets) {}

  Gradients<float> run() {
    const AttentionShape& s = shape_;
    Gradients<float> g{Tensor<float>(s.batch, s.q_heads, s.q_len, s.head_dim),
                       Tensor<float>(s.batch, s.kv_heads, s.kv_len, s.head_dim),
                       Tensor<float>(s.batch, s.kv_heads, s.kv_len, s.head_dim),
                       std::vector<double>(s.q_heads),
                       std::vector<double>(s.q_heads),
                       std::vector<double>(spec_.bias.table.size())};
    ds_.resize(p_.values.size());
    if (spec_.bias.any()) dscores_.resize(p_.values.size());
    if (spec_.dropout.drops()) {
      dropped_.resize(p_.values.size());
      weights_ = dropped_;
    }
    std::vector<RowScalars> of_rows(s.rows());
    parallel_for_with(
        s.rows(), screening::kBackwardRows, [&] { return BlockedSum(s.head_dim); },
        [&](BlockedSum& dq, int64_t row) { of_rows[row] = run_row(row, dq, g.dq); });
    for (int64_t row = 0; row < s.rows(); ++row) {
      const int64_t head = row / s.q_len % s.q_heads;
      g.dalpha[head] += of_rows[row].dalpha;
      g.dsinks[head] += of_rows[row].dsink;
    }

    if (spec_.bias.any()) parallel_for(s.q_heads, 1, [&](int64_t head) { add_biases(head, g.dbias); });

    std::vector<ColumnSupport> columns(s.batch * s.kv_heads);
    const int64_t heads = s.batch * s.kv_heads;
    parallel_for(heads, 1, [&](int64_t head) { columns[head] = transpose(head); });
    using Sums = std::array<BlockedSum, 2>;  // for dK and dV
    parallel_for_with(
        heads * s.kv_len, screening::kBackwardKeys,
        [&] {
          return Sums{BlockedSum(s.head_dim), BlockedSum(s.head_dim)};
        },
        [&](Sums& sums, int64_t i) {
          run_column(i / s.kv_len, i % s.kv_len, columns[i / s.kv_len], sums[0], sums[1], g);
        });
    return g;
  }

 private:
  struct RowPlace {
    int64_t batch, q_head, kv_head, query;
  };
  RowPlace place(int64_t row) const {
    const int64_t head = row / shape_.q_len;
    const int64_t q_head = head % shape_.q_heads;
    return {head / shape_.q_heads, q_head, shape_.kv_head_of(q_head), row % shape_.q_len};
  }

  struct RowScalars {
    double dalpha = 0, dsink = 0;
  };

  // Computes ds and dQ of one row.
  RowScalars run_row(int64_t row, BlockedSum& sum, Tensor<float>& dq) {
    const auto [b, h, kv, i] = place(row);
    const int64_t begin = p_.row_offsets[row];
    const int64_t end = p_.row_offsets[row + 1];
    const DropoutRow kept(spec_.dropout, row);
    for (int64_t n = begin; n < end; ++n) {  // ds_ holds g for now
      const int32_t key = p_.columns[n];
      const float factor = kept.keeps(key) ? dropout_factor<float>(spec_) : 0;
      ds_[n] = factor > 0 ? factor * dot(dout_.row(b, h, i), v_.row(b, kv, key), shape_.head_dim) : 0;
      if (spec_.dropout.drops()) dropped_[n] = factor * p_.values[n];
    }
    const std::span<const float> p(p_.values.data() + begin, end - begin);
    const std::span<float> ds(ds_.data() + begin, end - begin);
    const double alpha = spec_.normalizer.alpha_of(h);
    RowScalars scalars;
    if (!tau_offsets_.empty()) {
      const double shift = shift_of_offset(tau_offsets_[row], alpha, shape_.kv_len);
      scalars.dalpha = gradient_at<float>(alpha, shift, p, ds, ds);
    } else if (const double u = (alpha - 1) * spec_.sink_of(h) - tau_[row]; u > 0) {
      scalars = gradient_with_sink(alpha, static_cast<float>(std::pow(u, 1 / (alpha - 1))), p, ds);
    } else {
      scalars.dalpha = entmax_gradient<float>(alpha, p, ds, ds);
    }
    const auto scale = static_cast<float>(spec_.score_scale());
    if (spec_.bias.any()) std::ranges::copy(ds, dscores_.begin() + begin);
    for (int64_t n = begin; n < end; ++n) {
      ds_[n] *= scale;
      if (spec_.softcap > 0) {
        const float product = dot(q_.row(b, h, i), k_.row(b, kv, p_.columns[n]), shape_.head_dim);
        ds_[n] *= spec_.cap_slope(spec_.capped(scale * product));
      }
      sum.add(ds_[n], k_.row(b, kv, p_.columns[n]));
    }
    sum.take(dq.row(b, h, i));
    return scalars;
  }

  // The sink is a key like others, but that its g is 0.
  static RowScalars gradient_with_sink(double alpha, float p_sink, std::span<const float> p,
                                       std::span<float> ds) {
    std::vector<float> all_p(p.begin(), p.end()), all_ds(ds.begin(), ds.end());
    all_p.push_back(p_sink);
    all_ds.push_back(0);
    const double dalpha = entmax_gradient<float>(alpha, all_p, all_ds, all_ds);
    std::copy_n(all_ds.begin(), ds.size(), ds.begin());
    return {dalpha, all_ds.back()};
  }

  // dbias of a head: its rows in order, so the sums do not depend on the number of threads.
  void add_biases(int64_t q_head, std::vector<double>& dbias) const {
    for (int64_t b = 0; b < shape_.batch; ++b) {
      for (int64_t i = 0; i < shape_.q_len; ++i) {
        const int64_t row = (b * shape_.q_heads + q_head) * shape_.q_len + i;
        for (int64_t n = p_.row_offsets[row]; n < p_.row_offsets[row + 1]; ++n)
          dbias[spec_.bias.index(shape_, q_head, i, p_.columns[n])] += dscores_[n];
      }
    }
  }

  // Counting sort of the entries of all rows that read this key head.
  ColumnSupport transpose(int64_t head) const {
    const int64_t b = head / shape_.kv_heads;
    const int64_t kv = head % shape_.kv_heads;
    const int64_t first_row = (b * shape_.q_heads + kv * shape_.group()) * shape_.q_len;
    const int64_t last_row = first_row + shape_.group() * shape_.q_len;
    const int64_t begin = p_.row_offsets[first_row];
    const int64_t end = p_.row_offsets[last_row];
    ColumnSupport c;
    c.offsets.assign(shape_.kv_len + 1, 0);
    c.entries.resize(end - begin);
    c.rows.resize(end - begin);
    for (int64_t n = begin; n < end; ++n) ++c.offsets[p_.columns[n] + 1];
    for (int64_t j = 0; j < shape_.kv_len; ++j) c.offsets[j + 1] += c.offsets[j];
    std::vector<int64_t> next(c.offsets.begin(), c.offsets.end() - 1);
    for (int64_t row = first_row; row < last_row; ++row) {
      for (int64_t n = p_.row_offsets[row]; n < p_.row_offsets[row + 1]; ++n) {
        const int64_t at = next[p_.columns[n]]++;
        c.entries[at] = n;
        c.rows[at] = row;
      }
    }
    return c;
  }

  // dV_j = sum p dO, dK_j = sum ds q, over the column in row order, so the sums do not depend on the number
  // of threads.
  void run_column(int64_t head, int64_t j, const ColumnSupport& columns, BlockedSum& dk, BlockedSum& dv,
                  Gradients<float>& g) const {
    for (int64_t n = columns.offsets[j]; n < columns.offsets[j + 1]; ++n) {
      const auto [b, h, kv, i] = place(columns.rows[n]);
      const float weight = weights_[columns.entries[n]];
      if (weight > 0) dv.add(weight, dout_.row(b, h, i));
      dk.add(ds_[columns.entries[n]], q_.row(b, h, i));
    }
    dk.take(g.dk.row(head / shape_.kv_heads, head % shape_.kv_heads, j));
    dv.take(g.dv.row(head / shape_.kv_heads, head % shape_.kv_heads, j));
  }

  const AttentionShape& shape_;
  const AttentionSpec& spec_;
  const SparseProbabilities<float>& p_;
  std::span<const float> weights_;  // [nnz]: of the values in the output, p_'s or dropped_
  const std::vector<double>& tau_;
  TensorView<const float> q_, k_, v_, dout_;
  std::span<const float> tau_offsets_;
  std::vector<float> ds_;       // [nnz]: gradient of the product <q, k>
  std::vector<float> dscores_;  // [nnz]: of the score; empty where there is no bias
  std::vector<float> dropped_;  // [nnz]: probabilities after dropout; empty where it drops nothing
};

}  // namespace

Gradients<float> screened_backward(const AttentionSpec& spec, const ScreenedForward& forward,
                                   TensorView<const float> q, TensorView<const float> k,
                                   TensorView<const float> v, TensorView<const float> dout,
                                   std::span<const float> tau_offsets) {
  spec.validate();
  const AttentionShape& s = spec.shape;
  require_extents("q", q, s.batch, s.q_heads, s.q_len, s.head_dim);
  require_extents("k", k, s.batch, s.kv_heads, s.kv_len, s.head_dim);
  require_extents("v", v, s.batch, s.kv_heads, s.kv_len, s.head_dim);
  require_extents("dout", dout, s.batch, s.q_heads, s.q_len, s.head_dim);
  if (static_cast<int64_t>(forward.probabilities.row_offsets.size()) != s.rows() + 1) {
    throw InvalidArgument(
        "the forward result holds no probabilities; call screened_forward with keep_probabilities");
  }
  require_offsets(spec, tau_offsets.size());
  return SupportBackward(spec, forward, q, k, v, dout, tau_offsets).run();
}

}  // namespace splash::cpu_ref
