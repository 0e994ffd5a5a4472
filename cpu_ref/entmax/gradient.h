#pragma once
// The Jacobian of one row of entmax (MATH: Gradients).

#include <span>

namespace splash::cpu_ref {

// From p and dL/dp = d_p: ds = dL/dscores; returns dL/dalpha. p, d_p, ds: [n], p without NaN; d_p and ds may
// be the same memory. Sums run in double. Keys with p = 0 get 0: exact away from changes of the support.
//
// ds_j = u_j (g_j - delta), u = p^(2-alpha), delta = sum u g / sum u. Above alpha = 2 the smallest p weighs
// most, by up to 10^300 and more, so g is taken relative to the g of the key that weighs most, and weights
// relative to its weight: its own ds, the negative sum of the others', keeps its digits, and nothing
// overflows. A ds beyond T's range, which alpha > 2 brings where p is small, is T's largest number.
template <class T>
double entmax_gradient(double alpha, std::span<const T> p, std::span<const T> d_p, std::span<T> ds);

}  // namespace splash::cpu_ref
