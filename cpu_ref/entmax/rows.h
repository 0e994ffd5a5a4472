#pragma once
// alpha-entmax of the rows of a matrix, with its gradients (Peters, Niculae, Martins 2019; MATH: Gradients):
// what a layer that is no attention calls.

#include <cstdint>
#include <span>

namespace splash::cpu_ref {

// p = entmax of each row. scores, p: [rows, n], n >= 0, not the same memory; alpha: [1] or [rows], each one
// that entmax takes (core/normalizer.h). -inf is a masked key; a row of them gives zeros, one with NaN or
// +inf a NaN row. alpha up to 2 is solved by Newton, larger ones by bracketed Halley steps. Threads share the
// rows. Throws InvalidArgument where the lengths or an alpha do not fit.
template <class T>
void entmax_rows(std::span<const T> scores, std::span<const double> alpha, int64_t rows, std::span<T> p);

// From p and dL/dp: d_scores = dL/dscores [rows, n] and d_alpha = dL/dalpha of each row [rows]. Exact away
// from changes of the support; NaN rows give NaN. The same bits for any number of threads.
// Throws as entmax_rows.
template <class T>
void entmax_rows_gradient(std::span<const T> p, std::span<const T> d_p, std::span<const double> alpha,
                          int64_t rows, std::span<T> d_scores, std::span<double> d_alpha);

// One row of it: ds [n] = dL/dscores; returns dL/dalpha. p without NaN.
template <class T>
double entmax_gradient(double alpha, std::span<const T> p, std::span<const T> d_p, std::span<T> ds);

}  // namespace splash::cpu_ref
