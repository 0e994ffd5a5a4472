#pragma once
// Rows whose threshold is given instead of solved for (source 004, "direct"): p = [z - tau_hat]_+^beta / W, W
// the sum over the row, beta = 1 / (alpha - 1).
//
// tau_hat comes as an offset to m, the row's largest z: tau_hat = m + offset. Only its negative enters, the
// shift m - tau_hat, held where tau itself can lie: tau is between m - 1 and m - n^(1-alpha), n keys (MATH).
// So the largest key always takes part, with a weight of at least 1 / n before it is divided.

#include <cmath>
#include <cstdint>
#include <span>

#include "core/attention_spec.h"
#include "cpu_ref/attention/row.h"

namespace splash::cpu_ref {

// m - tau_hat in [kv_len^(1-alpha), 1]; NaN for NaN, which makes its row NaN.
double shift_of_offset(double offset, double alpha, int64_t kv_len);

// Throws InvalidArgument where there are offsets of another number than rows, Unsupported where they meet
// another normalizer than entmax or a selection but all and top_k_row.
void require_offsets(const AttentionSpec& spec, size_t offsets);

// Fills row.p from row.scores; returns tau_hat in units of z, +inf for a row without keys. NaN as
// normalize_row.
template <class T>
double probabilities_at(double alpha, double shift, Row<T>& row);

// From p of probabilities_at and dL/dp = d_p: ds = dL/dscores, returns dL/dalpha. The offset is a constant,
// and so is which score is the largest and what it is (straight-through): dz_j = beta w_j^(1-1/beta) / W (g_j
// - sum p g). d_p and ds may be the same memory. Errors as entmax_gradient.
template <class T>
double gradient_at(double alpha, double shift, std::span<const T> p, std::span<const T> d_p, std::span<T> ds);

}  // namespace splash::cpu_ref
