#pragma once
// The power approximation of source document 000. In general it does not approximate entmax: entmax's
// exponent is 1/(alpha-1), so the two agree only if alpha (alpha-1) = 1, alpha = 1.618...; and its threshold
// is 0, not tau.

#include <span>

namespace splash::cpu_ref {

// w_j = max(s_j, 0)^alpha. p = w / sum w if `normalized`, otherwise p = w as the source writes it. scores, p:
// [n], n >= 0; they may be the same memory. O(n), no allocation. -inf is a masked key. A row without a
// positive score gives zeros; a row with NaN or +inf gives NaN. Throws InvalidArgument for alpha <= 0 or not
// finite, and if the lengths differ.
template <class T>
void power_row(std::span<const T> scores, double alpha, bool normalized, std::span<T> p);

}  // namespace splash::cpu_ref
