#pragma once
// Renews the counted and simulated columns of a recorded report from this build's declarations.

#include <functional>
#include <string>

#include "report/report.h"

namespace splash::experiments {

struct Recounted {
  int64_t cases = 0, changed = 0;  // changed: cases whose counts were different
};

// Renews work, bytes, roofs and simulated columns of every forward that was run, and the counts of calls with
// backward (counted_backward.h), for variants whose id starts with prefix. Measured columns stay; without
// `simulate` the simulated ones stay too. Calls `progress` after each case, from several threads. Throws
// ReportError if the report has no such cases, InvalidArgument if no file describes the GPU or this build
// does not know a variant.
Recounted recount(report::Report& report, const std::string& prefix,
                  const std::function<void(const std::string& kernel)>& progress, bool simulate = true);

}  // namespace splash::experiments
