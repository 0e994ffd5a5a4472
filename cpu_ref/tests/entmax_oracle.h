#pragma once
// Entmax of a row in long double, by bisection, and rows that are hard for it. It shares no code with the
// solvers.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "core/random.h"

namespace splash::cpu_ref::testing {

// The probabilities by score. Equal scores share one, so that rows of a million keys with few different
// scores are cheap.
class Oracle {
 public:
  // z = factor * score. Scores of -inf are left out.
  template <class T>
  Oracle(const std::vector<T>& scores, long double factor, long double alpha) : a_(alpha - 1) {
    for (const T score : scores)
      if (score > -std::numeric_limits<T>::infinity()) ++count_[score];
    const long double max = count_.begin()->first;
    reference_ = max;
    if (alpha > 2) {  // the lowest score that may have p > 0: with it as tau, sum p is below 1
      for (const auto& [score, count] : count_)
        if (factor * (max - score) < 1 && sum(factor, score, 0) < 1) reference_ = score;
    }
    long double low = 0, high = 1;
    for (int step = 0; step < 70; ++step) {
      const long double middle = (low + high) / 2;
      (sum(factor, reference_, middle) >= 1 ? high : low) = middle;
    }
    const long double gap = std::pow(low, a_);
    for (const auto& [score, count] : count_)
      p_[score] = score == reference_ ? low : share(factor * (score - reference_), gap);
    tau_ = factor * reference_ - gap;
  }

  long double operator()(long double score) const {
    const auto found = p_.find(score);
    return found == p_.end() ? 0 : found->second;
  }
  const std::map<long double, int64_t, std::greater<>>& count() const { return count_; }
  long double tau() const { return tau_; }

 private:
  // p of a key whose z is `above` the reference's, which is `gap` above tau. Near alpha = 1 long double has
  // enough digits for the power of a million; above 2 nothing cancels, because the reference is the lowest.
  long double share(long double above, long double gap) const {
    const long double d = gap + above;
    return d > 0 && (a_ <= 1 || above >= 0) ? std::pow(d, 1 / a_) : 0;
  }
  // sum p if the reference has the probability `own`.
  long double sum(long double factor, long double reference, long double own) const {
    const long double gap = std::pow(own, a_);
    long double sum = 0;
    for (const auto& [score, count] : count_) {
      if (sum > 2 || (a_ > 1 && score < reference)) break;
      sum += static_cast<long double>(count) *
             (score == reference ? own : share(factor * (score - reference), gap));
    }
    return sum;
  }

  long double a_, reference_ = 0, tau_ = 0;
  std::map<long double, int64_t, std::greater<>> count_;
  std::map<long double, long double> p_;
};

// Names of the rows that hard_row() makes.
inline const std::vector<std::string> kPatterns{"ties",       "sink 0.9", "sink 0.1", "sink 0.001",
                                                "near equal", "nearest",  "gaussian", "spread",
                                                "clusters",   "huge",     "denormal", "offset"};

// n scores with few different values.
template <class T>
std::vector<T> hard_row(const std::string& pattern, int64_t n, uint64_t seed = 1) {
  const CounterRandom random(seed);
  const T most = std::numeric_limits<T>::max(), least = std::numeric_limits<T>::denorm_min();
  std::vector<T> row(n);
  for (int64_t j = 0; j < n; ++j) {
    const double normal = random.normal(j);
    const auto level = static_cast<T>(random.bits(j) % 8);
    if (pattern == "ties") row[j] = T(3.25);
    if (pattern == "near equal") row[j] = static_cast<T>(1e-3 * std::round(32 * normal) / 32);
    if (pattern == "nearest") row[j] = static_cast<T>(1e-6 * std::round(32 * normal) / 32);
    if (pattern == "gaussian") row[j] = static_cast<T>(std::round(64 * normal) / 64);
    if (pattern == "spread") row[j] = static_cast<T>(100 * std::round(64 * normal) / 64);
    if (pattern == "clusters") row[j] = j % 3 == 0 ? T(0) : j % 3 == 1 ? T(-0.3) : T(-0.30001);
    if (pattern == "huge") row[j] = level == 7 ? most : level == 6 ? -most : most / 16 * level;
    if (pattern == "denormal") row[j] = least * level;
    if (pattern == "offset") row[j] = T(1e4) + std::round(static_cast<T>(64 * normal)) / 64;
  }
  if (pattern.starts_with("sink")) row[n / 2] = static_cast<T>(std::stod(pattern.substr(5)));
  return row;
}

}  // namespace splash::cpu_ref::testing
