#pragma once
// The CPU implementations of a report against the processor's ceilings: the least time that each level
// (products, L2, DRAM) needs for the FLOPs and bytes that the implementation's trace counts.

#include <string>
#include <vector>

#include "analysis/diagnosis.h"
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
  double cores = 0;           // that a benched kernel keeps busy; NaN: not known
  double seconds = 0;         // median of a call
  double flops = 0;           // of the products as they run, padding included
  double useful_flops = 0;    // on visible pairs; a backward counts the pairs of the support
  double l2_bytes = 0;        // asked of the cores' L2 and the levels behind it
  double dram_bytes = 0;      // that DRAM must deliver: each touched byte once
  double l2_hit_bytes = 0;    // simulated; NaN: not simulated
  double dram_simulated = 0;  // read and written, simulated; NaN: not simulated
};

// The cases that were run, in the report's order, without peers, which have no counts. Empty if the report
// has no such cases. Throws ReportError if its columns contradict one another.
std::vector<CpuCase> cpu_cases(const report::Report& report);

// Seconds at the measured ceilings of all threads, however many threads the case has. Throws ReportError if
// the report lacks a ceiling that the case needs.
Floors floors_of(const CpuCase& cpu, const std::vector<report::Ceiling>& ceilings);

// What bounds a case: a level that needs kBusy of the time, else cores that stand idle (of a benched kernel),
// else what is inside the cores, with the level that comes nearest. Throws what floors_of() throws.
Finding finding_of(const CpuCase& cpu, const std::vector<report::Ceiling>& ceilings);

}  // namespace splash::analysis
