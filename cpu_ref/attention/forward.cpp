#include "cpu_ref/attention/forward.h"

#include <algorithm>

#include "cpu_ref/attention/forward_rows.h"
#include "cpu_ref/attention/normalize_row.h"
#include "cpu_ref/attention/select.h"

namespace splash::cpu_ref {

int64_t BlockMap::count(uint8_t s) const {
  return std::ranges::count(state, s);
}

template <class T>
ForwardResult<T> attention_forward(const AttentionSpec& spec, TensorView<const T> q, TensorView<const T> k,
                                   TensorView<const T> v, const ForwardOptions& options) {
  require_inputs(spec, q, k, v);
  require_options(options);
  require_solver(spec.normalizer, options.solver);
  return forward_rows(spec, q, k, v, options, [&](const RowAddress& at, Row<T>& row) {
    select_keys(spec, at, options.solver, row);
    return normalize_row(spec.normalizer, at.q_head, options.solver, row);
  });
}

template ForwardResult<float> attention_forward(const AttentionSpec&, TensorView<const float>,
                                                TensorView<const float>, TensorView<const float>,
                                                const ForwardOptions&);
template ForwardResult<double> attention_forward(const AttentionSpec&, TensorView<const double>,
                                                 TensorView<const double>, TensorView<const double>,
                                                 const ForwardOptions&);

}  // namespace splash::cpu_ref
