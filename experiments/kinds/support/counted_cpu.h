#pragma once
// Report numbers from the trace of a CPU implementation: its work, and its accesses in simulated caches.

#include <map>
#include <string>
#include <vector>

#include "core/block_trace.h"
#include "cpu_ref/ceilings/caches.h"
#include "experiments/runner/kind.h"
#include "report/report.h"

namespace splash::experiments {

// The columns useful_flops to roof_share. `missing_reason` says why a value may be missing.
std::vector<report::ColumnInfo> counted_cpu_columns(const std::string& missing_reason);

// Adds math_unit "cpu float32" and those columns, except floor_time and roof_share. Reads time_median from
// the numbers. Simulates caches if their sizes are known and there are not too many accesses: each thread has
// its own L2, whose misses go to one last-level cache. All caches are empty at first.
void add_cpu_counts(const std::vector<KernelTrace>& parts, double useful_flops, int64_t threads,
                    const cpu_ref::Caches& caches, CaseResult& result);

// Adds floor_time and roof_share at cpu_ceilings() to a case with counts; does nothing to others. A level
// whose ceiling could not be measured is left out.
void add_cpu_roof(CaseResult& result);

}  // namespace splash::experiments
