#include "cpu_ref/attention/backward.h"

#include "cpu_ref/attention/backward_rows.h"
#include "cpu_ref/attention/normalize_row.h"
#include "cpu_ref/attention/row_gradient.h"
#include "cpu_ref/attention/select.h"

namespace splash::cpu_ref {

template <class T>
Gradients<T> attention_backward(const AttentionSpec& spec, TensorView<const T> q, TensorView<const T> k,
                                TensorView<const T> v, TensorView<const T> dout,
                                const BackwardOptions& options) {
  require_inputs(spec, q, k, v);
  require_extents("dout", dout, q.batch, q.heads, q.length, q.dim);
  require_solver(spec.normalizer, options.solver);
  const bool straight_through = options.straight_through && spec.selection.kind != SelectionKind::all;
  return backward_rows(
      spec, q, k, v, dout, [&](const RowAddress& at, Row<T>& row, const RowProducts<T>& products) {
        Row<T> unselected;
        if (straight_through) unselected = row;
        select_keys(spec, at, options.solver, row);
        normalize_row(spec.normalizer, at.q_head, options.solver, row);
        products.add_value_gradient(at, row);
        products.value_products(at, row);
        const double dalpha = row_gradient(spec.normalizer, at.q_head, row);  // of the forward that was run
        if (straight_through) {
          normalize_row(spec.normalizer, at.q_head, options.solver, unselected);
          products.value_products(at, unselected);
          row_gradient(spec.normalizer, at.q_head, unselected);
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
