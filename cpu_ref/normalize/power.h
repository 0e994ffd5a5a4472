#pragma once
// The power approximation of source document 000. It is no approximation of entmax in general: entmax's
// exponent is 1/(alpha-1), and the two meet only where alpha (alpha-1) = 1, alpha = 1.618...; its threshold
// is 0, not tau.

#include <span>

namespace splash::cpu_ref {

// w_j = max(s_j, 0)^alpha; p = w / sum w where `normalized`, else p = w as the source writes it.
// scores, p: [n], n >= 0; they may be the same memory. O(n), no allocation.
// -inf is a masked key; a row without a positive score gives zeros, one with NaN or +inf a NaN row.
// Throws InvalidArgument for alpha <= 0 or not finite, and where the lengths differ.
template <class T>
void power_row(std::span<const T> scores, double alpha, bool normalized, std::span<T> p);

}  // namespace splash::cpu_ref
