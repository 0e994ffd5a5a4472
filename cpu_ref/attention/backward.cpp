#include "cpu_ref/attention/backward.h"

#include "cpu_ref/attention/backward_rows.h"
#include "cpu_ref/attention/given_threshold.h"
#include "cpu_ref/attention/normalize_row.h"
#include "cpu_ref/attention/row_gradient.h"
#include "cpu_ref/attention/select.h"

namespace splash::cpu_ref {

// Recomputes one row's probabilities, and applies their Jacobian. The threshold is solved for or given.
template <class T>
class RowNormalizer {
 public:
  RowNormalizer(const AttentionSpec& spec, const BackwardOptions& options) : spec_(spec), options_(options) {}

  void probabilities(const RowAddress& at, Row<T>& row) const {
    if (options_.tau_offsets.empty()) {
      normalize_row(spec_.normalizer, at.q_head, options_.solver, row);
    } else {
      probabilities_at(alpha(at), shift(at), row);
    }
  }

  double gradient(const RowAddress& at, Row<T>& row) const {
    if (options_.tau_offsets.empty() || row.poisoned) return row_gradient(spec_.normalizer, at.q_head, row);
    row.ds.resize(row.keys.size());
    return gradient_at<T>(alpha(at), shift(at), row.p, row.g, row.ds);
  }

 private:
  double alpha(const RowAddress& at) const { return spec_.normalizer.alpha_of(at.q_head); }
  double shift(const RowAddress& at) const {
    return shift_of_offset(options_.tau_offsets[row_index(spec_.shape, at)], alpha(at), spec_.shape.kv_len);
  }

  const AttentionSpec& spec_;
  const BackwardOptions& options_;
};

template <class T>
Gradients<T> attention_backward(const AttentionSpec& spec, TensorView<const T> q, TensorView<const T> k,
                                TensorView<const T> v, TensorView<const T> dout,
                                const BackwardOptions& options) {
  require_inputs(spec, q, k, v);
  require_extents("dout", dout, q.batch, q.heads, q.length, q.dim);
  require_solver(spec.normalizer, options.solver);
  require_offsets(spec, options.tau_offsets.size());
  const RowNormalizer<T> normalizer(spec, options);
  const bool straight_through = options.straight_through && spec.selection.kind != SelectionKind::all;
  return backward_rows(spec, q, k, v, dout,
                       [&](const RowAddress& at, Row<T>& row, const RowProducts<T>& products) {
                         Row<T> unselected;
                         if (straight_through) unselected = row;
                         select_keys(spec, at, options.solver, row);
                         normalizer.probabilities(at, row);
                         products.add_value_gradient(at, row);
                         products.value_products(at, row);
                         const double dalpha = normalizer.gradient(at, row);  // of the forward that ran
                         if (straight_through) {
                           normalizer.probabilities(at, unselected);
                           products.value_products(at, unselected);
                           normalizer.gradient(at, unselected);
                           row.ds_sink = unselected.ds_sink;
                         }
                         products.add_score_gradient(at, straight_through ? unselected : row);
                         return dalpha;
                       });
}

template Gradients<float> attention_backward(const AttentionSpec&, TensorView<const float>,
                                             TensorView<const float>, TensorView<const float>,
                                             TensorView<const float>, const BackwardOptions&);
template Gradients<double> attention_backward(const AttentionSpec&, TensorView<const double>,
                                              TensorView<const double>, TensorView<const double>,
                                              TensorView<const double>, const BackwardOptions&);

}  // namespace splash::cpu_ref
