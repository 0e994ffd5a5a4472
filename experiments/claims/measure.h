#pragma once
// Measures one expectation in a report: a number with its interval.

#include <cstdint>
#include <string>
#include <vector>

#include "experiments/runner/definition.h"
#include "report/report.h"

namespace splash::experiments {

// ours: the statistic over the cases that match. low, high: its interval.
// - median: the distribution-free 95 % interval; mean: the normal one; fraction_true: Wilson's (1927). The
//   cases are taken for a sample of more of their kind.
// - min, max, sum and median_case, or a single case: what follows from the intervals of the cases' medians
//   (columns x_low and x_high beside x_median). The cases are all that there are, as the layers of a model.
// - otherwise, or with too few cases: the value itself.
// - a ratio: the least and the largest quotient of the two intervals' ends. Of two sums there is none where
//   they are of unequally many cases.
struct Measured {
  double ours = 0, low = 0, high = 0;
  int64_t cases = 0;       // cases that have a number
  std::string formula;     // "median of mse over 12 cases with scope row, k_keep 8"
  std::string why_none{};  // if there are cases and yet no number
  bool found() const { return cases > 0; }
};

// Whether a case holds, in the column of each name, one of the filter's values.
bool fits(const report::Report& report, const Filter& where, std::size_t row);

// The statistic of at least one value, without its interval.
double statistic_of(Statistic statistic, const std::vector<double>& values);

Measured measure(const report::Report& report, const std::string& experiment, const Expectation& expectation);
Measured measure(const report::Report& report, const std::string& experiment, const Measurement& measurement);

// Combines several runs' measurements of one expectation. Each run contributes its own ratio, so times of two
// machines are never mixed. ours is the median over the runs; low and high are the lowest and highest end of
// their intervals. Runs that did not measure it are left out.
Measured pooled(const std::vector<Measured>& runs);

}  // namespace splash::experiments
