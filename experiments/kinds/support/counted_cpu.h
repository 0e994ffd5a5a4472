#pragma once
// A report's numbers from the trace of a CPU implementation: its work, and its accesses in simulated caches.

#include <map>
#include <string>
#include <vector>

#include "core/block_trace.h"
#include "cpu_ref/ceilings/caches.h"
#include "experiments/runner/kind.h"
#include "report/report.h"

namespace splash::experiments {

// useful_flops to roof_share; missing where `missing_reason` holds.
std::vector<report::ColumnInfo> counted_cpu_columns(const std::string& missing_reason);

// Adds those columns but floor_time and roof_share, and math_unit "cpu float32". Reads time_median from the
// numbers. Simulates caches if their sizes are known and the accesses are not too many: each thread has an L2
// of its own, whose misses go to one last-level cache; all are empty at first.
void add_cpu_counts(const std::vector<KernelTrace>& parts, double useful_flops, int64_t threads,
                    const cpu_ref::Caches& caches, CaseResult& result);

// floor_time and roof_share of a case with counts, at cpu_ceilings(); else nothing. A level whose ceiling
// could not be measured is left out.
void add_cpu_roof(CaseResult& result);

}  // namespace splash::experiments
