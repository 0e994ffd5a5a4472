#pragma once
// Stable softmax of one row: it takes exponentials of s - max.

#include <span>

namespace splash::cpu_ref {

// p_j = exp(s_j) / sum exp(s). scores, p: [n], n >= 0; they may be the same memory. O(n), no allocation. -inf
// is a masked key. A row without visible keys gives zeros; a row with NaN or +inf gives NaN. Throws
// InvalidArgument if the lengths differ.
template <class T>
void softmax_row(std::span<const T> scores, std::span<T> p);

}  // namespace splash::cpu_ref
