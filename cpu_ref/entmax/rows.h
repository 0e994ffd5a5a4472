#pragma once
// alpha-entmax of a matrix's rows, with gradients (Peters, Niculae, Martins 2019; MATH: Gradients). For
// layers other than attention.

#include <cstdint>
#include <span>

namespace splash::cpu_ref {

// p = entmax of each row. scores, p: [rows, n], n >= 0, not the same memory. alpha: [1] or [rows], each one
// that entmax takes (core/normalizer.h). -inf is a masked key. A row without visible keys gives zeros; a row
// with NaN or +inf gives NaN. |sum p - 1| is a few roundings of T, and the support is exact, as threshold.h
// states. Threads share the rows. Throws InvalidArgument if the lengths or an alpha do not fit.
template <class T>
void entmax_rows(std::span<const T> scores, std::span<const double> alpha, int64_t rows, std::span<T> p);

// Takes p and dL/dp. Fills d_scores = dL/dscores [rows, n] and d_alpha = dL/dalpha of each row [rows]. Exact
// away from changes of the support; NaN rows give NaN. The same bits for any number of threads. Throws what
// entmax_rows throws.
template <class T>
void entmax_rows_gradient(std::span<const T> p, std::span<const T> d_p, std::span<const double> alpha,
                          int64_t rows, std::span<T> d_scores, std::span<double> d_alpha);

}  // namespace splash::cpu_ref
