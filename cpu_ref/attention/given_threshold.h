#pragma once
// Rows with a given threshold instead of a solved one (source 004, "direct"): p = [z - tau_hat]_+^beta / W,
// where W is the sum over the row and beta = 1 / (alpha - 1).
//
// tau_hat is given as an offset to m, the row's largest z: tau_hat = m + offset. Only its negative, the shift
// m - tau_hat, enters. It is clamped to where tau can lie: tau is between m - 1 and m - n^(1-alpha) for n
// keys (MATH). So the largest key always takes part, with a weight of at least 1 / n before the division by
// W.

#include <cmath>
#include <cstdint>
#include <span>

#include "core/attention_spec.h"
#include "cpu_ref/attention/row.h"

namespace splash::cpu_ref {

// m - tau_hat, clamped to [kv_len^(1-alpha), 1]. NaN stays NaN, which makes its row NaN.
double shift_of_offset(double offset, double alpha, int64_t kv_len);

// Throws InvalidArgument if the number of offsets is not that of the rows, Unsupported for offsets with
// sinks, a normalizer other than entmax or a selection other than all and top_k_row.
void require_offsets(const AttentionSpec& spec, size_t offsets);

// Fills row.p from row.scores; returns tau_hat in units of z, +inf for a row without keys. Treats NaN as
// normalize_row does.
template <class T>
double probabilities_at(double alpha, double shift, Row<T>& row);

// Takes p of probabilities_at and dL/dp = d_p. Fills ds = dL/dscores and returns dL/dalpha. The offset counts
// as a constant, as do the index and the value of the largest score (straight-through): dz_j = beta
// w_j^(1-1/beta) / W (g_j - sum p g). d_p and ds may be the same memory. Large values are handled as in
// entmax_gradient.
template <class T>
double gradient_at(double alpha, double shift, std::span<const T> p, std::span<const T> d_p, std::span<T> ds);

}  // namespace splash::cpu_ref
