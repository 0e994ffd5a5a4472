#pragma once
// The keys of one row that may still have a probability, and the certified bound that sorts out the others.
//
// MATH, lemmas (i) and (ii): tau of the keys seen so far is at most tau of all keys, and a key with z <= t <=
// tau has p = 0. Newton's iterates from the left are such bounds for alpha <= 2; for alpha > 2 the lower end
// of a bracket is.
//
// A predicted threshold is no bound. Keys are dropped by it all the same, and whether that was right is known
// in the end: if tau of what is left is not below what was dropped, tau of all keys is the same.

#include <array>
#include <cstdint>
#include <vector>

#include "core/mask.h"
#include "cpu_ref/attention/screening/tile.h"

namespace splash::cpu_ref::screening {

class Candidates {
 public:
  // Any alpha; z = factor * <q, k>, factor > 0; k_keep: at most that many keys, the largest (0: all).
  // predicted_peak: z of the largest key less the predicted tau; 1 is no prediction, for tau is at least
  // that.
  void reset(double alpha, float factor, int64_t k_keep, float predicted_peak = 1);

  // After reset: the threshold is not solved for but lies this far below the largest z, 0 < shift <= 1.
  void give_shift(double shift);

  // Keys with <q, k> at or under it can be dropped.
  float product_threshold() const { return product_threshold_; }
  int64_t count() const { return count_; }
  const int32_t* keys() const { return keys_.data(); }
  const float* probabilities() const { return z_.data(); }  // after solve()

  // Takes the products of a row with the panel of keys that begins at first_key: those above the threshold
  // and visible.
  void take_panel(const std::array<Vector, 2>& products, int64_t first_key, const RowMask& mask);

  // Takes all visible ones of n products at once and raises the bound: for the first keys, of which most are
  // kept.
  void take_all(const float* products, int64_t n, int64_t first_key, const RowMask& mask);

  // Solves the row on what is left, in double (cpu_ref/entmax/threshold.h): keeps the support, with its
  // probabilities, in key order. Returns tau, +inf for a row without keys. From then on it takes no keys.
  double solve();

  // After solve(): whether a wrong prediction may have dropped a key with p > 0. The row counts for nothing
  // then.
  bool misled() const { return misled_; }
  bool is_solved() const { return solved_; }
  void begin_again() { reset(alpha_, factor_, k_keep_); }  // without a prediction
  int64_t listed() const { return listed_; }  // keys that were above the threshold when they were looked at

 private:
  void reserve(int64_t extra);
  void drop_hidden(int64_t from, int64_t first_key, int64_t n, const RowMask& mask);
  void refresh(int steps);  // raises the bound, drops what falls under it
  void keep_above(float bound);
  int64_t padded_count() const;
  void keep_largest(int64_t n);
  double weigh_at_shift(float max);
  void keep_support();

  double alpha_ = 1.5;
  int64_t k_keep_ = 0, count_ = 0, next_refresh_ = 0, listed_ = 0;
  float factor_ = 1, predicted_peak_ = 1;
  // bound: of tau. The threshold is it, or the prediction, less a margin; predicted: the largest of these.
  float bound_ = 0, predicted_ = 0, product_threshold_ = 0;
  double shift_ = 1;  // of z's largest key above the threshold: at most, or, where given, just that
  bool solved_ = false, misled_ = false, given_ = false;
  std::vector<float> z_, scratch_;  // scratch: alpha > 2 alone
  std::vector<int32_t> keys_;
};

}  // namespace splash::cpu_ref::screening
