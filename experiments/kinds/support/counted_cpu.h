#pragma once
// What the trace of an implementation on the CPU tells, as numbers for a report: work, and what simulated
// caches make of its accesses.

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

// All of them but floor_time and roof_share, and math_unit "cpu float32". Takes time_median from the numbers.
// Caches are simulated where the sizes are known and there are not too many lines: each thread's share of
// work passes an L2 of its own, what that lacks the last cache, both empty at first.
void add_cpu_counts(const std::vector<KernelTrace>& parts, double useful_flops, int64_t threads,
                    const cpu_ref::Caches& caches, CaseResult& result);

// floor_time and roof_share of a case with counts, at cpu_ceilings(); else nothing. A level whose ceiling
// could not be measured is left out.
void add_cpu_roof(CaseResult& result);

}  // namespace splash::experiments
