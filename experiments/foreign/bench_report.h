#pragma once
// The report of a benched kernel: columns as `splash import` writes them, so that analyze, diagnose, what-if, plots and
// the page read it.

#include <string>

#include "experiments/foreign/bench.h"
#include "report/report.h"

namespace splash::experiments {

// One case: `implementation` under `problem`. A kernel with findings has no time, and they stand in `warning`. The
// caller adds provenance and title. Throws InvalidArgument if a file of data/machines is faulty.
report::Report bench_report(const BenchResult& result, const std::string& implementation, const BenchOptions& options,
                            std::vector<report::Ceiling> ceilings);

}  // namespace splash::experiments
