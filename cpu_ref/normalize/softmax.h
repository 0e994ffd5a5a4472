#pragma once
// Softmax of one row, stable: exponents are taken of s - max.

#include <span>

namespace splash::cpu_ref {

// p_j = exp(s_j) / sum exp(s). scores, p: [n], n >= 0; they may be the same memory. O(n), no allocation.
// -inf is a masked key; a row without visible keys gives zeros, one with NaN or +inf a NaN row.
// Throws InvalidArgument where the lengths differ.
template <class T>
void softmax_row(std::span<const T> scores, std::span<T> p);

}  // namespace splash::cpu_ref
