#pragma once
// The steps of decode in a report of the kind gpu-decode, as cases whose counters a profiler tells.

#include <vector>

#include "analysis/roofline.h"

namespace splash::analysis {

// Whether the report holds such steps.
bool holds_decode_steps(const report::Report& report);

// The steps that were run, in the report's order, without peers. Only their DRAM bytes are counted: FLOPs and
// L2 bytes are NaN. Nothing declares their kernels' geometry (use.blocks is 0), so a profiler's table must be
// of one step. Throws ReportError if the report lacks the columns.
std::vector<KernelCase> decode_steps(const report::Report& report);

}  // namespace splash::analysis
