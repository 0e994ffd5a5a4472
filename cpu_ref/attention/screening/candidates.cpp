#include "cpu_ref/attention/screening/candidates.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <span>

#include "core/round.h"
#include "cpu_ref/entmax/evaluate.h"
#include "cpu_ref/entmax/threshold.h"

namespace splash::cpu_ref::screening {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kEpsilon = std::numeric_limits<float>::epsilon();
constexpr int64_t kRefreshInterval = 12;  // new candidates between refreshes; 6 to 24 measure alike
constexpr int kFirstSteps = 4;            // Newton steps on the first keys, from max - 1
constexpr int kRefreshSteps = 1;          // later: the bound moves little and need not converge

// A certified step up from t, where t <= tau of the keys in z. For alpha <= 2 by Newton, otherwise to the
// lower end of a bracket.
float raise_bound(const float* z, int64_t n, float max, float t, double alpha, int steps) {
  float offset = t - max;
  if (alpha <= 2) {
    for (int step = 0; step < steps; ++step) {
      const RowSums sums = evaluate(z, n, max, offset, alpha);
      if (sums.f() <= 0) break;
      offset += static_cast<float>(sums.f() / sums.slope);
    }
  } else {
    for (float width = 0.5f; width > 0.05f; width /= 2) {
      if (offset + width < 0 && evaluate(z, n, max, offset + width, alpha).f() >= 0) offset += width;
    }
  }
  return max + offset;
}

}  // namespace

void Candidates::reset(double alpha, float factor, float cap, int64_t k_keep, float sink, const BiasRow& bias,
                       float predicted_peak) {
  alpha_ = alpha;
  factor_ = factor;
  cap_ = cap;
  sink_ = sink;
  k_keep_ = k_keep;
  bias_ = bias;
  predicted_peak_ = predicted_peak > 0 ? std::min(predicted_peak, 1.0f) : 1;  // NaN: no prediction
  count_ = listed_ = 0;
  next_refresh_ = kRefreshInterval;
  threshold_ = product_threshold_ = bound_ = predicted_ = -kInfinity;
  solved_ = misled_ = given_ = false;
  shift_ = 1;
  put_sink();
}

// Before all others, unless it is there or there is none. A bound may have dropped it.
void Candidates::put_sink() {
  if (sink_ == -kInfinity || has_sink()) return;
  reserve(1);
  std::copy_backward(z_.begin(), z_.begin() + count_, z_.begin() + count_ + 1);
  std::copy_backward(keys_.begin(), keys_.begin() + count_, keys_.begin() + count_ + 1);
  z_[0] = sink_;
  keys_[0] = kSink;
  ++count_;
}

void Candidates::give_shift(double shift) {
  shift_ = shift;
  given_ = true;
}

void Candidates::reserve(int64_t extra) {
  const int64_t needed = count_ + extra + kLanes;  // appends write whole vectors
  if (needed <= static_cast<int64_t>(z_.size())) return;
  z_.resize(2 * needed);
  keys_.resize(2 * needed);
}

void Candidates::take_panel(const std::array<Vector, 2>& products, int64_t first_key, const RowMask& mask) {
  if (first_key >= mask.end || first_key + kPanelKeys <= mask.begin) return;
  reserve(kPanelKeys);
  const int64_t before = count_;
  count_ += append_above(products, product_threshold(first_key), factor_, static_cast<int32_t>(first_key),
                         z_.data() + count_, keys_.data() + count_);
  cap_scores(before);
  add_bias(before);
  drop_hidden(before, first_key, kPanelKeys, mask);
  listed_ += count_ - before;
  if (count_ >= next_refresh_) refresh(kRefreshSteps);
}

void Candidates::take_all(const float* products, int64_t n, int64_t first_key, const RowMask& mask) {
  if (solved_) return;
  reserve(n);
  const int64_t before = count_;
  for (int64_t i = 0; i < n; ++i) z_[before + i] = factor_ * products[i];
  for (int64_t i = 0; i < n; ++i) keys_[before + i] = static_cast<int32_t>(first_key + i);
  count_ += n;
  cap_scores(before);
  add_bias(before);
  drop_hidden(before, first_key, n, mask);
  if (count_ > 0) refresh(kFirstSteps);
  listed_ += count_ - before;
}

void Candidates::forget_keys() {
  if (solved_) return;
  count_ = listed_ = 0;
  next_refresh_ = kRefreshInterval;
  put_sink();
}

// Of the entries from `from` on.
void Candidates::cap_scores(int64_t from) {
  if (cap_ <= 0) return;
  for (int64_t i = from; i < count_; ++i) z_[i] = cap_ * std::tanh(z_[i] / cap_);
}

void Candidates::add_bias(int64_t from) {
  if (!bias_.any()) return;
  int64_t kept = from;
  for (int64_t i = from; i < count_; ++i) {
    z_[kept] = z_[i] + bias_.of(keys_[i]);
    keys_[kept] = keys_[i];
    kept += z_[kept] > threshold_ ? 1 : 0;
  }
  count_ = kept;
}

// z = fl(s + b) above the threshold t, and b <= largest: so s is above t - largest, less the rounding of both
// sums.
float Candidates::below_bias(float largest) const {
  if (solved_) return kInfinity;
  return product_at(threshold_ - largest - 4 * kEpsilon * (std::abs(threshold_) + std::abs(largest)));
}

// tanh rises, so its inverse bounds the products. A computed tanh errs by a few ulp of 1.
float Candidates::product_at(float z) const {
  double uncapped = z;
  if (cap_ > 0) {
    const double share = double{z} / cap_ - 8 * double{kEpsilon};
    if (share <= -1) return -kInfinity;
    uncapped = share < 1 ? cap_ * std::atanh(share) : kInfinity;
  }
  const auto product = static_cast<float>(uncapped / factor_);
  return product - 2 * kEpsilon * std::abs(product);
}

// Drops the hidden keys among the entries from `from` on, whose keys are all in [first_key, first_key + n).
void Candidates::drop_hidden(int64_t from, int64_t first_key, int64_t n, const RowMask& mask) {
  const bool in_range = first_key >= mask.begin && first_key + n <= mask.end && mask.k_positions == nullptr;
  const bool pairs_seen = mask.pairs == nullptr || (n <= kPanelKeys && mask.sees_whole(first_key, n));
  if (in_range && pairs_seen) return;
  int64_t kept = from;
  for (int64_t i = from; i < count_; ++i) {
    z_[kept] = z_[i];
    keys_[kept] = keys_[i];
    kept += mask.visible(keys_[i]) ? 1 : 0;
  }
  count_ = kept;
}

void Candidates::refresh(int steps) {
  const float max = largest(z_.data(), count_);
  // A sum of up to n float terms errs by a few ulp of 1, and its addition to max by one ulp of max. The
  // margin keeps the bound that far below. A bound of keys that were forgotten may be above max.
  bound_ = std::max(bound_, max - static_cast<float>(shift_));
  const float margin = kEpsilon * (16 + 4 * std::max(std::abs(max), std::abs(bound_)));
  keep_above(bound_ - margin);
  if (!given_ && max > bound_) bound_ = raise_bound(z_.data(), padded_count(), max, bound_, alpha_, steps);
  float threshold = bound_ - margin;
  if (max - predicted_peak_ > bound_) {  // never for a peak of 1
    predicted_ = std::max(predicted_, max - predicted_peak_ - margin);
    threshold = std::max(threshold, predicted_);
  }
  keep_above(threshold);
  threshold_ = threshold;
  product_threshold_ = product_at(threshold);
  next_refresh_ = count_ + std::max(kRefreshInterval, count_ / 2);
}

void Candidates::keep_above(float bound) {
  int64_t kept = 0;
  int64_t i = 0;
  for (; i + kLanes <= count_; i += kLanes) {
    kept += compress_above(z_.data() + i, keys_.data() + i, bound, z_.data() + kept, keys_.data() + kept);
  }
  for (; i < count_; ++i) {
    z_[kept] = z_[i];
    keys_[kept] = keys_[i];
    kept += z_[i] > bound ? 1 : 0;
  }
  count_ = kept;
  std::fill_n(z_.begin() + count_, kLanes, -kInfinity);
}

// The count rounded up to whole vectors. After keep_above the extra entries are -inf, which a solver takes
// for masked keys; so it has no scalar remainder loop.
int64_t Candidates::padded_count() const {
  return round_up(count_, kLanes);
}

// Of keys; the sink stays.
void Candidates::keep_largest(int64_t n) {
  const int64_t first = has_sink() ? 1 : 0;
  std::vector<float> sorted(z_.begin() + first, z_.begin() + count_);
  std::nth_element(sorted.begin(), sorted.begin() + n - 1, sorted.end(), std::greater<>());
  const float smallest = sorted[n - 1];
  // Among equal scores the lower key index stays. `ties` counts how many of the equal ones fit.
  int64_t ties =
      n - std::count_if(z_.begin() + first, z_.begin() + count_, [&](float z) { return z > smallest; });
  int64_t kept = first;
  for (int64_t i = first; i < count_; ++i) {
    const bool keep = z_[i] > smallest || (z_[i] == smallest && ties-- > 0);
    z_[kept] = z_[i];
    keys_[kept] = keys_[i];
    kept += keep ? 1 : 0;
  }
  count_ = kept;
}

double Candidates::solve() {
  solved_ = true;
  product_threshold_ = kInfinity;
  put_sink();
  const bool cut = k_keep_ > 0 && count_ - (has_sink() ? 1 : 0) > k_keep_;
  if (cut) keep_largest(k_keep_);
  if (count_ == 0) return std::numeric_limits<double>::infinity();
  keep_above(-kInfinity);
  const float max = largest(z_.data(), count_);
  if (given_) return weigh_at_shift(max);
  // For a cut row, the bound of all keys is no bound. Otherwise it holds up to its rounding.
  const double start = cut ? 1 : static_cast<double>(max) - bound_ + kEpsilon * (16 + 4 * std::abs(max));
  if (alpha_ > 2) scratch_.resize(padded_count());
  const std::span<float> z(z_.data(), padded_count());
  const Threshold threshold = settle<float>(z, max, 1, alpha_, std::min(1.0, start), scratch_);
  // In a cut row, what a prediction dropped lies below the largest keys, which are all still here.
  misled_ = !cut && threshold.tau() < predicted_;
  threshold.probabilities<float>(z, z);
  keep_support();
  return threshold.tau();
}

// Computes in double, relative to the largest key's weight, so that no sum of weights underflows.
double Candidates::weigh_at_shift(float max) {
  const double beta = 1 / (alpha_ - 1);
  const auto weight = [&](float z) { return std::pow(std::max((double{z} - max) / shift_ + 1, 0.0), beta); };
  double total = 0;
  for (int64_t i = 0; i < count_; ++i) total += weight(z_[i]);
  for (int64_t i = 0; i < count_; ++i) z_[i] = static_cast<float>(weight(z_[i]) / total);
  keep_support();
  return double{max} - shift_;
}

// z_ holds probabilities now; keeps those of keys that are above 0.
void Candidates::keep_support() {
  int64_t kept = 0;
  for (int64_t i = 0; i < count_; ++i) {
    const float probability = z_[i];
    z_[kept] = probability;
    keys_[kept] = keys_[i];
    kept += probability > 0 && keys_[kept] != kSink ? 1 : 0;
  }
  count_ = kept;
}

}  // namespace splash::cpu_ref::screening
