#include "analysis/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "core/error.h"

namespace splash::analysis {
namespace {

std::vector<double> sorted_samples(std::span<const double> samples) {
  std::vector<double> sorted;
  sorted.reserve(samples.size());
  std::copy_if(samples.begin(), samples.end(), std::back_inserter(sorted),
               [](double x) { return !std::isnan(x); });
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

void check_confidence(double confidence) {
  if (!(confidence > 0 && confidence < 1)) {
    throw InvalidArgument(fmt::format("confidence {}: a number between 0 and 1 is needed", confidence));
  }
}

// The largest k such that [k-th smallest, k-th largest] holds the median with `confidence`; 0 if there is
// none. The interval misses the median iff fewer than k samples fall on one side: 2 P(B <= k - 1), B ~
// Binomial(n, 1/2).
size_t interval_rank(size_t n, double confidence) {
  const double budget =
      (1 - confidence) / 2 * (1 + 1e-12);  // levels that are met exactly, such as 1 - 2/2^6, count as reached
  double log_probability = -static_cast<double>(n) * std::log(2.0);  // of P(B = 0)
  double tail = 0;
  size_t rank = 0;
  while (rank <= n / 2) {
    tail += std::exp(log_probability);
    if (tail > budget) break;
    log_probability += std::log(static_cast<double>(n - rank) / static_cast<double>(rank + 1));
    ++rank;
  }
  return rank;
}

}  // namespace

double quantile(std::span<const double> samples, double q) {
  if (!(q >= 0 && q <= 1))
    throw InvalidArgument(fmt::format("quantile {}: a number from 0 to 1 is needed", q));
  const std::vector<double> sorted = sorted_samples(samples);
  if (sorted.empty()) return std::numeric_limits<double>::quiet_NaN();
  const double position = q * static_cast<double>(sorted.size() - 1);
  const size_t below = static_cast<size_t>(position);
  const double weight = position - static_cast<double>(below);
  if (weight == 0 || sorted[below] == sorted[below + 1]) return sorted[below];  // also avoids inf - inf
  return sorted[below] + weight * (sorted[below + 1] - sorted[below]);
}

double median(std::span<const double> samples) {
  return quantile(samples, 0.5);
}

Interval median_interval(std::span<const double> samples, double confidence) {
  check_confidence(confidence);
  const std::vector<double> sorted = sorted_samples(samples);
  if (sorted.empty()) {
    const double missing = std::numeric_limits<double>::quiet_NaN();
    return {missing, missing};
  }
  const size_t rank = std::max<size_t>(1, interval_rank(sorted.size(), confidence));
  return {sorted[rank - 1], sorted[sorted.size() - rank]};
}

int64_t samples_needed(double confidence) {
  check_confidence(confidence);
  int64_t n = 1;
  while (interval_rank(static_cast<size_t>(n), confidence) == 0) ++n;
  return n;
}

}  // namespace splash::analysis
