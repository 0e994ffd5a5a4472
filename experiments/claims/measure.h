#pragma once
// Measures one expectation in a report: a number with its interval.

#include <cstdint>
#include <string>
#include <vector>

#include "experiments/runner/definition.h"
#include "report/report.h"

namespace splash::experiments {

// ours = the statistic over the cases that fit. low, high: for the median the distribution-free 95 %
// interval, for the mean the normal one, for fraction_true Wilson's (1927); for min and max, and for one
// case, what the intervals of the cases' medians (columns x_low and x_high beside x_median) leave open; else,
// or where there are too few cases, the value itself. Of a ratio: the interval's ends divided the wide way.
struct Measured {
  double ours = 0, low = 0, high = 0;
  int64_t cases = 0;    // with a number
  std::string formula;  // "median of mse over 12 cases with scope row, k_keep 8"
  bool found() const { return cases > 0; }
};

Measured measure(const report::Report& report, const std::string& experiment, const Expectation& expectation);
Measured measure(const report::Report& report, const std::string& experiment, const Measurement& measurement);

// What several runs say of one expectation, each in its own ratio: times of two machines are never mixed. The
// median of the runs; from the lowest end of their intervals to the highest. Runs that did not measure it are
// left out.
Measured pooled(const std::vector<Measured>& runs);

}  // namespace splash::experiments
