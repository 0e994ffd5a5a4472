#pragma once
// alpha-entmax of the rows of a matrix, with its gradients (Peters, Niculae, Martins 2019; MATH: Gradients):
// what a layer that is no attention calls.

#include <cstdint>
#include <span>

namespace splash::cpu_ref {

// p = entmax of each row. scores, p: [rows, n], n >= 0, not the same memory; alpha: [1] or [rows], each one
// that entmax takes (core/normalizer.h). -inf is a masked key; a row of them gives zeros, one with NaN or
// +inf a NaN row. |sum p - 1| is a few roundings of T and the support exact, as threshold.h states. Threads
// share the rows. Throws InvalidArgument where the lengths or an alpha do not fit.
template <class T>
void entmax_rows(std::span<const T> scores, std::span<const double> alpha, int64_t rows, std::span<T> p);

// From p and dL/dp: d_scores = dL/dscores [rows, n] and d_alpha = dL/dalpha of each row [rows]. Exact away
// from changes of the support; NaN rows give NaN. The same bits for any number of threads.
// Throws as entmax_rows.
template <class T>
void entmax_rows_gradient(std::span<const T> p, std::span<const T> d_p, std::span<const double> alpha,
                          int64_t rows, std::span<T> d_scores, std::span<double> d_alpha);

}  // namespace splash::cpu_ref
