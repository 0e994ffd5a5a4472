#pragma once
// The report of benched kernels: columns as `splash import` writes them, so that analyze, diagnose, what-if,
// plots and the page read it.

#include <string>
#include <vector>

#include "experiments/foreign/bench.h"
#include "report/report.h"

namespace splash::experiments {

struct BenchedCase {
  std::string implementation;
  std::string workload{};  // its name, where it has one
  BenchResult result;
};

// Cases of one device, one at least. A kernel with findings has no time, and they stand in `warning`. The
// caller adds provenance and title. Throws InvalidArgument if a file of data/machines is faulty.
report::Report bench_report(const std::vector<BenchedCase>& cases, const BenchOptions& options,
                            std::vector<report::Ceiling> ceilings);

}  // namespace splash::experiments
