#pragma once
// The Jacobian of one row's normalizer (MATH: Gradients).

#include "core/normalizer.h"
#include "cpu_ref/attention/row.h"

namespace splash::cpu_ref {

// Fills row.ds = dL/dscore, and row.ds_sink, from row.scores, row.p, row.p_sink and row.g = dL/dp, and
// returns dL/dalpha (0 for softmax). Sums are in double. Keys with p = 0 get 0, so the derivative is exact
// away from changes of the support.
template <class T>
double row_gradient(const Normalizer& normalizer, int64_t q_head, Row<T>& row);

}  // namespace splash::cpu_ref
