#pragma once
// The Jacobian of one row of entmax (MATH: Gradients).

#include <span>

namespace splash::cpu_ref {

// Takes p and dL/dp = d_p. Fills ds = dL/dscores and returns dL/dalpha. p, d_p, ds: [n], p without NaN; d_p
// and ds may be the same memory. Sums are in double. Keys with p = 0 get 0, which is exact away from changes
// of the support.
//
// ds_j = u_j (g_j - delta), u = p^(2-alpha), delta = sum u g / sum u. Above alpha = 2 the smallest p has the
// largest u, by a factor of 10^300 and more. So g is taken relative to the g of that heaviest key, and
// weights relative to its weight. Its own ds, the negative sum of the others', then keeps its digits, and
// nothing overflows. A ds beyond T's range, which alpha > 2 gives for small p, becomes T's largest number.
template <class T>
double entmax_gradient(double alpha, std::span<const T> p, std::span<const T> d_p, std::span<T> ds);

}  // namespace splash::cpu_ref
