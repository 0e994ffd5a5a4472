#pragma once
// Robust summaries of repeated measurements. NaN samples are padding and are left out.

#include <cstdint>
#include <span>
#include <vector>

namespace splash::analysis {

struct Interval {
  double low = 0, high = 0;
};

// Linear-interpolated quantile, q in [0, 1] (Hyndman and Fan 1996, type 7). NaN for no samples.
double quantile(std::span<const double> samples, double q);
double median(std::span<const double> samples);

// Distribution-free confidence interval of the median from order statistics (binomial; Le Boudec 2010, ch.
// 2). With fewer samples than the level needs it is the whole range; with none it is NaN.
Interval median_interval(std::span<const double> samples, double confidence = 0.95);

// The fewest samples whose range is such an interval: 6 at 95 %, 8 at 99 %.
int64_t samples_needed(double confidence = 0.95);

}  // namespace splash::analysis
