#include "cpu_ref/entmax/threshold.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>

#include "cpu_ref/entmax/evaluate.h"

namespace splash::cpu_ref {
namespace {

constexpr int kMostRootSteps = 100;
constexpr double kEpsilon = std::numeric_limits<double>::epsilon();

// The relative error that a sum of n terms may have when it is taken in blocks as below.
double rounding(int64_t n) {
  return kEpsilon * (4 + std::sqrt(static_cast<double>(n)));
}

struct Sums {
  double mass = 0, slope = 0;
};

// Calls add(j, sums) for j in [0, n) and sums in blocks, so that the error grows only with n/256.
template <class Add>
Sums sum_in_blocks(int64_t n, const Add& add) {
  constexpr int64_t kBlock = 256;
  Sums total;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    Sums block;
    for (int64_t j = begin; j < std::min(n, begin + kBlock); ++j) add(j, block);
    total.mass += block.mass;
    total.slope += block.slope;
  }
  return total;
}

double clamped(double start, double low) {
  return start > low && start < 1 ? start : start <= low ? low : 1;
}

// alpha 1.5 and 2: Newton on the gap itself, from the right, where the mass is convex and too large. In units
// of scores it solves sum (s - max + gap / factor)^beta = factor^-beta.
template <class T>
double integer_power_gap(std::span<const T> scores, T max, double factor, double alpha, double start) {
  const auto n = static_cast<int64_t>(scores.size());
  const double unit = entmax_power(factor, alpha);
  double gap = clamped(start, std::pow(static_cast<double>(n), 1 - alpha)) / factor;
  for (int step = 0; step < kMostRootSteps; ++step) {
    const RowSums sums = evaluate<double>(scores.data(), n, max, -gap, alpha);
    const double next = std::min(gap - (unit * sums.mass - 1) / (unit * sums.slope), 1 / factor);
    if (!(next < gap) && step > 0) break;  // only rounding brings a later iterate past the root
    if (next == gap) break;
    gap = next;
  }
  return factor * gap;
}

// p / p_ref of a key whose factor (s - s_ref) / gap is `ratio`, 1 < alpha < 2.
double relative_power(double ratio, double beta) {
  return ratio > -1 ? std::exp(beta * std::log1p(ratio)) : 0;
}

// 1 < alpha < 2: Newton on the logarithm of sum p, in the variable -ln p_ref in [0, ln n]. As alpha
// approaches 1 this becomes log-sum-exp, which one step solves.
template <class T>
double log_peak(std::span<const T> scores, double max, double factor, double alpha, double start) {
  const auto n = static_cast<int64_t>(scores.size());
  const double beta = 1 / (alpha - 1);
  double low = 0, high = std::log(static_cast<double>(n));
  double at = std::clamp(-beta * std::log(clamped(start, 0)), low, high);
  double best = at, best_residual = std::numeric_limits<double>::infinity();
  for (int step = 0; step < kMostRootSteps; ++step) {
    const double over_gap = factor * std::exp((alpha - 1) * at);
    const Sums sums = sum_in_blocks(n, [&](int64_t j, Sums& block) {
      const double ratio = (scores[j] - max) * over_gap;
      if (!(ratio > -1)) return;
      const double p = relative_power(ratio, beta);
      block.mass += p;
      block.slope += p / (1 + ratio);
    });
    const double residual = std::log(sums.mass) - at;
    if (std::abs(residual) < std::abs(best_residual)) {
      best = at;
      best_residual = residual;
    }
    if (std::abs(residual) <= rounding(n)) break;
    (residual > 0 ? low : high) = at;
    double next = at + residual * sums.mass / sums.slope;
    if (!(low < next && next < high)) next = low + (high - low) / 2;
    if (next == at || !(low < high)) break;
    at = next;
  }
  return best;
}

// alpha > 2. Bases of powers are scaled by 2^512: differences of denormal scores then are normal numbers, and
// no base overflows.
struct SteepPower {
  static constexpr double kUnit = 0x1p512;
  double alpha, factor;
  double beta = 1 / (alpha - 1);
  double lift = std::pow(kUnit, beta);
  double scale = std::pow(factor, beta) / lift;

  double base(double above_reference) const { return kUnit * above_reference; }
  double base_of(double p) const { return std::pow(lift * p, alpha - 1) / factor; }
  double p_of(double base) const { return scale * std::pow(base, beta); }
};

// The scores that may be in the support, in falling order.
template <class T>
class SteepRow {
 public:
  SteepRow(std::span<const T> falling, const SteepPower& power) : falling_(falling), power_(power) {}

  Threshold solve() const {
    int64_t low = 0, high = static_cast<int64_t>(falling_.size());  // score at high <= tau < score at low
    for (int64_t step = 1; low + step < high; step *= 2) (mass_at(low + step) < 1 ? low : high) = low + step;
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      (mass_at(middle) < 1 ? low : high) = middle;
    }
    const double p = reference_probability(first_of(low), low + 1);
    return {power_.alpha, power_.factor, falling_[low], p, std::pow(p, power_.alpha - 1)};
  }

 private:
  int64_t first_of(int64_t k) const {
    return std::lower_bound(falling_.begin(), falling_.end(), falling_[k], std::greater<>()) -
           falling_.begin();
  }

  double above(int64_t j, int64_t k) const {
    return static_cast<double>(falling_[j]) - static_cast<double>(falling_[k]);
  }

  // sum p with the k-th score as tau.
  double mass_at(int64_t k) const {
    return sum_in_blocks(first_of(k),
                         [&](int64_t j, Sums& block) { block.mass += power_.p_of(power_.base(above(j, k))); })
        .mass;
  }

  // p of the scores [first, last), which are equal and the lowest of the support. sum p is convex in this p,
  // with a slope of at least last - first, so this is Newton from the right.
  double reference_probability(int64_t first, int64_t last) const {
    const auto ties = static_cast<double>(last - first);
    double p = (1 - mass_at(first)) / ties;
    for (int step = 0; step < kMostRootSteps && first > 0; ++step) {
      const double own = power_.base_of(p);
      const Sums others = sum_in_blocks(first, [&](int64_t j, Sums& block) {
        const double base = power_.base(above(j, first)) + own;
        const double q = power_.p_of(base);
        block.mass += q;
        block.slope += own / base * (q / p);
      });
      const double f = others.mass + ties * p - 1;
      const double next = p - f / (others.slope + ties);
      if (!(next > 0 && next < p)) break;
      p = next;
      if (f <= rounding(last)) break;
    }
    return p;
  }

  std::span<const T> falling_;
  SteepPower power_;
};

}  // namespace

template <class T>
void Threshold::probabilities(std::span<const T> scores, std::span<T> out) const {
  const auto n = static_cast<int64_t>(scores.size());
  const T* const s = scores.data();
  T* const to = out.data();
  if (alpha == 1.5 || alpha == 2) {
    const bool square = alpha == 1.5;
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      const double distance = factor * (static_cast<double>(s[j]) - reference) + gap;
      const double d = distance > 0 ? distance : 0;
      to[j] = static_cast<T>(square ? d * d : d);
    }
  } else if (alpha < 2) {
    const double over_gap = factor / gap, beta = 1 / (alpha - 1);
    for (int64_t j = 0; j < n; ++j)
      to[j] = static_cast<T>(p * relative_power((s[j] - reference) * over_gap, beta));
  } else {
    const SteepPower power{alpha, factor};
    const double own = power.base_of(p);
    for (int64_t j = 0; j < n; ++j) {
      const double above = s[j] - reference;
      to[j] = static_cast<T>(above > 0 ? power.p_of(power.base(above) + own) : above == 0 ? p : 0);
    }
  }
}

template <class T>
Threshold settle(std::span<const T> scores, T max, double factor, double alpha, double start,
                 std::span<T> scratch) {
  const double largest = max;
  if (alpha == 1.5 || alpha == 2) {
    const double gap = integer_power_gap(scores, max, factor, alpha, start);
    return {alpha, factor, largest, entmax_power(gap, alpha), gap};
  }
  if (alpha < 2) {
    const double minus_log = log_peak(scores, largest, factor, alpha, start);
    return {alpha, factor, largest, std::exp(-minus_log), std::exp((1 - alpha) * minus_log)};
  }
  int64_t kept = 0;
  for (const T score : scores) {
    scratch[kept] = score;
    kept += factor * (score - largest) >= -1 ? 1 : 0;
  }
  const auto candidates = scratch.first(kept);
  std::ranges::sort(candidates, std::greater<>());
  return SteepRow<T>(candidates, {alpha, factor}).solve();
}

template void Threshold::probabilities(std::span<const float>, std::span<float>) const;
template void Threshold::probabilities(std::span<const double>, std::span<double>) const;
template Threshold settle(std::span<const float>, float, double, double, double, std::span<float>);
template Threshold settle(std::span<const double>, double, double, double, double, std::span<double>);

}  // namespace splash::cpu_ref
