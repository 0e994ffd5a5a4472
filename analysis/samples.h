#pragma once
// Tells whether the samples of a timing can be trusted, and what to do if they cannot.

#include <limits>
#include <span>
#include <string>
#include <vector>

#include "report/report.h"

namespace splash::analysis {

// The multiprocessors' clock before and after the samples; NaN: not known.
struct ClockSpan {
  double before_hz = std::numeric_limits<double>::quiet_NaN();
  double after_hz = std::numeric_limits<double>::quiet_NaN();
};

// One sentence that includes what to do next; "" if nothing was noticed. Checks in this order:
//   throttling  the clock fell by more than kMoved
//   drift       the median of the later half is more than kMoved from that of the earlier one, of 20 samples
//   outliers    a tenth of the samples, and two at least, lie more than ten median absolute deviations and
//               more than 5 % from the median
std::string why_spoilt(std::span<const double> seconds, const ClockSpan& clock = {});
constexpr double kMoved = 0.03;

struct SpoiltCase {
  int64_t row = 0;
  std::string column, sentence;
};

// Checks all columns of raw times (units s, along `sample`) of a report, with clock_before and clock_after.
std::vector<SpoiltCase> spoilt_cases(const report::Report& report);

// The same for one case of one such column.
std::string why_spoilt(const report::Report& report, const report::Column& times, int64_t row);

// Whether a column holds raw times: seconds along `sample`, which differ from run to run.
bool holds_samples(const report::Column& column);

}  // namespace splash::analysis
