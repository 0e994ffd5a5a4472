#pragma once
// Where the CPU's implementations stand below the processor's ceilings: the least time that each level would
// need for what an implementation asks of it. FLOPs and bytes are counted by the implementation's trace.

#include <string>
#include <vector>

#include "analysis/roofline.h"
#include "report/report.h"

namespace splash::analysis {

// One timed implementation of a report of kind attention-speed.
struct CpuCase {
  int64_t row = 0;  // in the report's results
  std::string case_id, implementation;
  std::string problem;  // "forward, n 2048, heads 8, head_dim 64, causal"
  std::string dtype;    // of the products: "float32"
  int64_t threads = 1;
  double seconds = 0;         // median of a call
  double flops = 0;           // of the products as they run, padding included
  double useful_flops = 0;    // on visible pairs; of backward on the support
  double l2_bytes = 0;        // asked of the cores' L2 and what lies behind
  double dram_bytes = 0;      // that DRAM must deliver: each byte that is touched, once
  double l2_hit_bytes = 0;    // simulated; NaN where nothing was
  double dram_simulated = 0;  // read and written, simulated; NaN where nothing was
};

// Those that were run, in the report's order; peers are left out, for nothing is counted of them. Empty where
// the report has no such cases; throws ReportError where its columns contradict one another.
std::vector<CpuCase> cpu_cases(const report::Report& report);

// Seconds at the measured ceilings of all threads, whatever threads the case has. Throws ReportError where
// the report lacks one that the case needs.
Floors floors_of(const CpuCase& cpu, const std::vector<report::Ceiling>& ceilings);

}  // namespace splash::analysis
