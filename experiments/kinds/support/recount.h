#pragma once
// A recorded report with what this build's declarations count and simulate of its kernels.

#include <functional>
#include <string>

#include "report/report.h"

namespace splash::experiments {

struct Recounted {
  int64_t cases = 0, changed = 0;  // changed: their counts were others
};

// Work, bytes, roofs and simulated columns of every forward of a variant that was run, and what is counted of
// its calls with backward (counted_backward.h); what was measured stays. Of those whose id starts with
// prefix; `progress` hears of each that is done, from several threads. Without `simulate` what the report has
// of simulated caches stays, too. Throws ReportError where the report has no such cases, InvalidArgument
// where the GPU is not described or a variant is unknown to this build.
Recounted recount(report::Report& report, const std::string& prefix,
                  const std::function<void(const std::string& kernel)>& progress, bool simulate = true);

}  // namespace splash::experiments
