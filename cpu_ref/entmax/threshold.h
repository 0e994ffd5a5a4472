#pragma once
// The threshold of one row, stated so that its rounding does no harm.
//
// tau is a bad number to round. p = (z - tau)^beta, beta = 1/(alpha-1): near alpha = 1 the power multiplies a
// relative error of z - tau by beta, up to a million; above alpha = 2 it is infinitely steep at 0, where many
// keys may lie; and a million keys add up what each is off. So the threshold is stated by the probability of
// one key, the reference: tau = z_ref - p_ref^(alpha-1), and
//   p_j = (p_ref^(alpha-1) + factor (s_j - s_ref))^beta.
// A relative error e of p_ref moves sum p by e n^(alpha-1) at most for alpha <= 2 and by e above.
//   alpha <= 2: the reference is the largest score, and p_j = p_ref exp(beta log1p(factor (s_j - s_ref) /
//   p_ref^(alpha-1))), where no power of a rounded number near 1 occurs.
//   alpha > 2: it is the lowest score of the support, so that both terms of the base are positive and nothing
//   cancels; that even holds for bases far under the smallest double, as with alpha = 64 over a million keys.
//
// All in double, whatever the type of the scores. Let e = 2^-53 and m the largest z. Then |sum p - 1| <= e
// (16 sqrt(n) + n) before p is rounded to its type, and p is the exact one of scores that differ from the
// given ones by 8 e (m - tau) / factor or less (the roundings of s_j - s_ref, of the product, of the sum and
// of the power's base, each at most one e of m - tau). So the support is exact wherever |z_j - tau| exceeds
//   epsilon = 8 e (m - tau) <= 8.9e-16,
// but for a p that its own type rounds to 0.

#include <span>

namespace splash::cpu_ref {

struct Threshold {
  double alpha = 2;
  double factor = 1;     // z = factor * score
  double reference = 0;  // the reference key's score
  double p = 1;          // its probability
  double gap = 1;        // p^(alpha-1), which is its z less tau; 0 where that is under the smallest double

  double tau() const { return factor * reference - gap; }

  // What keys of these scores get, -inf included. scores, out: [n]; they may be the same memory.
  template <class T>
  void probabilities(std::span<const T> scores, std::span<T> out) const;
};

// Solves a row. scores: [n], n >= 1, no NaN or +inf, -inf for masked keys; max the largest, finite. start: a
// guess of m - tau in (0, 1], NaN where there is none; it saves iterations and changes nothing else. scratch:
// [n], read and written for alpha > 2 only, and not the scores' memory. No allocation.
// alpha <= 2: O(n) an iteration, 2 or 3 from a good start. alpha > 2: the keys within 1 of m are sorted,
// O(log n) sums over the larger ones find the reference.
template <class T>
Threshold settle(std::span<const T> scores, T max, double factor, double alpha, double start,
                 std::span<T> scratch);

}  // namespace splash::cpu_ref
