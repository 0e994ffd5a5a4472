#pragma once
// The keys of one row that may still have a probability, and the certified bound that rules out the others.
//
// MATH, lemmas (i) and (ii): tau of the keys seen so far is at most tau of all keys, and a key with z <= t <=
// tau has p = 0. For alpha <= 2 Newton's iterates from the left are such bounds; for alpha > 2 the lower end
// of a bracket is.
//
// A predicted threshold is no bound, but keys are dropped by it all the same. Whether that was right is known
// at the end: if tau of the remaining keys is not below what was dropped, tau of all keys is the same.

#include <array>
#include <cstdint>
#include <vector>

#include "core/mask.h"
#include "cpu_ref/attention/screening/bias.h"
#include "cpu_ref/attention/screening/tile.h"

namespace splash::cpu_ref::screening {

class Candidates {
 public:
  // Takes any alpha; z = factor * <q, k>, factor > 0; with a cap above 0, z = cap * tanh(factor * <q, k> /
  // cap), to which the bias is added. k_keep: keep at most that many keys, the largest (0: all).
  // predicted_peak: (largest z) - (predicted tau). 1 is no prediction, because tau is at least (largest z)
  // - 1. sink: a z without a key, which k_keep does not count; -inf: none.
  void reset(double alpha, float factor, float cap, int64_t k_keep, float sink, const BiasRow& bias = {},
             float predicted_peak = 1);

  // To be called after reset: the threshold is not solved for, but lies this far below the largest z, 0 <
  // shift <= 1.
  void give_shift(double shift);

  // Keys of the panel that begins at first_key with <q, k> at or below this can be dropped.
  float product_threshold(int64_t first_key) const {
    return bias_.any() ? below_bias(bias_.largest_of_panel(first_key)) : product_threshold_;
  }
  int64_t count() const { return count_; }
  const int32_t* keys() const { return keys_.data(); }
  const float* probabilities() const { return z_.data(); }  // after solve()

  // Takes a row's products with the panel of keys that begins at first_key. Keeps those that are visible and
  // above the threshold.
  void take_panel(const std::array<Vector, 2>& products, int64_t first_key, const RowMask& mask);

  // Takes all visible ones of n products at once and raises the bound. Meant for the first keys, most of
  // which are kept.
  void take_all(const float* products, int64_t n, int64_t first_key, const RowMask& mask);

  // Drops all keys, which are to be taken again; the bound that they gave stays.
  void forget_keys();

  // Solves the row on the remaining keys, in double (cpu_ref/entmax/threshold.h), and keeps the support with
  // its probabilities, in key order. Returns tau, +inf for a row without keys and sink. Afterwards the row
  // takes no more keys.
  double solve();

  // After solve(): whether a wrong prediction may have dropped a key with p > 0. The row's result is then
  // void.
  bool misled() const { return misled_; }
  bool is_solved() const { return solved_; }
  void begin_again() { reset(alpha_, factor_, cap_, k_keep_, sink_, bias_); }  // without the prediction
  int64_t listed() const { return listed_; }  // keys that were above the threshold when tested

 private:
  static constexpr int32_t kSink = -1;  // its key; it comes first
  bool has_sink() const { return count_ > 0 && keys_[0] == kSink; }
  void put_sink();
  void reserve(int64_t extra);
  void cap_scores(int64_t from);
  void add_bias(int64_t from);            // and drops what the threshold then rules out
  float product_at(float z) const;        // a product at or below it has a z that is not above the given one
  float below_bias(float largest) const;  // the same of the threshold, for products with at most that bias
  void drop_hidden(int64_t from, int64_t first_key, int64_t n, const RowMask& mask);
  void refresh(int steps);  // raises the bound, drops the keys below it
  void keep_above(float bound);
  int64_t padded_count() const;
  void keep_largest(int64_t n);
  double weigh_at_shift(float max);
  void keep_support();

  double alpha_ = 1.5;
  int64_t k_keep_ = 0, count_ = 0, next_refresh_ = 0, listed_ = 0;
  float factor_ = 1, cap_ = 0, sink_ = 0, predicted_peak_ = 1;
  // bound_: on tau. The threshold is the bound, or the prediction, minus a margin. predicted_: the largest
  // prediction used.
  float bound_ = 0, predicted_ = 0, threshold_ = 0, product_threshold_ = 0;
  BiasRow bias_{};
  double shift_ = 1;  // (largest z) - tau: at most this or, if given, exactly this
  bool solved_ = false, misled_ = false, given_ = false;
  std::vector<float> z_, scratch_;  // scratch_: only for alpha > 2
  std::vector<int32_t> keys_;
};

}  // namespace splash::cpu_ref::screening
