#include "cpu_ref/attention/forward.h"

#include <algorithm>

#include "cpu_ref/attention/forward_rows.h"
#include "cpu_ref/attention/given_threshold.h"
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
  require_offsets(spec, options.tau_offsets.size());
  return forward_rows(spec, q, k, v, options, [&](const RowAddress& at, Row<T>& row) {
    select_keys(spec, at, options.solver, row);
    if (options.tau_offsets.empty()) return normalize_row(spec.normalizer, at.q_head, options.solver, row);
    const double alpha = spec.normalizer.alpha_of(at.q_head);
    const double offset = options.tau_offsets[row_index(spec.shape, at)];
    return probabilities_at(alpha, shift_of_offset(offset, alpha, spec.shape.kv_len), row);
  });
}

template ForwardResult<float> attention_forward(const AttentionSpec&, TensorView<const float>,
                                                TensorView<const float>, TensorView<const float>,
                                                const ForwardOptions&);
template ForwardResult<double> attention_forward(const AttentionSpec&, TensorView<const double>,
                                                 TensorView<const double>, TensorView<const double>,
                                                 const ForwardOptions&);

}  // namespace splash::cpu_ref
