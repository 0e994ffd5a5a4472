#pragma once
// Central differences that stay away from changes of the support.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/random.h"

namespace splash::cpu_ref::test {

// A loss and the support on which it was computed. Where the support changes, the loss has no derivative to
// check.
struct LossValue {
  double loss = 0;
  std::vector<int32_t> support;
};

struct DifferenceReport {
  int64_t checked = 0, skipped = 0;
  double worst = 0;  // largest |difference - gradient| / max(1, |gradient|)

  bool mostly_checked() const { return checked > 0 && checked >= 3 * skipped; }
  void merge(const DifferenceReport& other) {
    checked += other.checked;
    skipped += other.skipped;
    worst = std::max(worst, other.worst);
  }
};

// Moves `samples` entries of values[0, size) by a small step each (all entries if samples is 0) and compares
// with the gradient. loss() returns the LossValue of the current problem. The support must stay the same over
// a step 30 times as wide, because for alpha > 2 the derivative is steep next to a change.
template <class T, class Gradient, class Loss>
DifferenceReport check_differences(T* values, const Gradient* gradient, int64_t size, int64_t samples,
                                   uint64_t seed, const Loss& loss) {
  constexpr double kStep = 1e-5, kWide = 30 * kStep;
  DifferenceReport report;
  const bool all = samples == 0 || samples >= size;
  for (int64_t n = 0; n < (all ? size : samples); ++n) {
    const int64_t i = all ? n : static_cast<int64_t>(CounterRandom(seed).bits(n) % size);
    const T before = values[i];
    const auto at = [&](double step) {
      values[i] = before + step;
      LossValue value = loss();
      values[i] = before;
      return value;
    };
    if (at(-kWide).support != at(kWide).support) {
      ++report.skipped;
      continue;
    }
    const double difference = (at(kStep).loss - at(-kStep).loss) / (2 * kStep);
    const double error =
        std::abs(difference - gradient[i]) / std::max(1.0, std::abs(static_cast<double>(gradient[i])));
    report.worst = std::isnan(error) ? INFINITY : std::max(report.worst, error);
    ++report.checked;
  }
  return report;
}

}  // namespace splash::cpu_ref::test
