#pragma once
// The threshold of one row, stated such that its rounding does no harm.
//
// tau is a bad number to round. In p = (z - tau)^beta, beta = 1/(alpha-1), the power multiplies a relative
// error of z - tau by beta near alpha = 1, which may be a million. Above alpha = 2 the power is infinitely
// steep at 0, where many keys may lie. And a million keys add up their errors. So the threshold is stated by
// the probability of one key, the reference: tau = z_ref - p_ref^(alpha-1), and
//   p_j = (p_ref^(alpha-1) + factor (s_j - s_ref))^beta.
// A relative error e of p_ref changes sum p by at most e n^(alpha-1) for alpha <= 2, and by e above.
//   alpha <= 2: the reference is the largest score, and p_j = p_ref exp(beta log1p(factor (s_j - s_ref) /
//   p_ref^(alpha-1))), which takes no power of a rounded number near 1.
//   alpha > 2: the reference is the lowest score of the support, so that both terms of the base are positive
//   and nothing cancels. That holds even for bases far below the smallest double, as with alpha = 64 over a
//   million keys.
//
// Everything is in double, whatever the type of the scores. Let e = 2^-53 and m the largest z. Then |sum p -
// 1| <= e (16 sqrt(n) + n) before p is rounded to its type. And p is exact for scores that differ from the
// given ones by at most 8 e (m - tau) / factor (the roundings of s_j - s_ref, of the product, of the sum and
// of the power's base, each at most one e of m - tau). So the support is exact wherever |z_j - tau| exceeds
//   epsilon = 8 e (m - tau) <= 8.9e-16,
// except for a p that its own type rounds to 0.

#include <span>

namespace splash::cpu_ref {

struct Threshold {
  double alpha = 2;
  double factor = 1;     // z = factor * score
  double reference = 0;  // the reference key's score
  double p = 1;          // its probability
  double gap = 1;        // p^(alpha-1), the reference's z - tau; 0 if that is below the smallest double

  double tau() const { return factor * reference - gap; }

  // The probabilities that these scores get, -inf included. scores, out: [n]; they may be the same memory.
  template <class T>
  void probabilities(std::span<const T> scores, std::span<T> out) const;
};

// Solves a row. scores: [n], n >= 1, no NaN or +inf, -inf for masked keys; max: the largest, finite. start: a
// guess of m - tau in (0, 1], NaN if there is none; it saves iterations and changes nothing else. scratch:
// [n], used only for alpha > 2, and not the scores' memory. Allocates nothing. alpha <= 2: O(n) per
// iteration, 2 or 3 iterations from a good start. alpha > 2: sorts the keys within 1 of m, and finds the
// reference by O(log n) sums over the larger ones.
template <class T>
Threshold settle(std::span<const T> scores, T max, double factor, double alpha, double start,
                 std::span<T> scratch);

}  // namespace splash::cpu_ref
