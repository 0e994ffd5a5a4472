#pragma once
// The commands that bring counters of a recorded case.

#include <string>

#include "analysis/roofline.h"

namespace splash::cli {

// Three lines for a shell: ncu over one call of gpu_bench on the case's problem, the export as CSV, and the
// import into `splash counters`. Throws ReportError where the report lacks a parameter.
std::string profile_commands(const std::string& report_path, const analysis::Report& report,
                             const analysis::KernelCase& kernel);

}  // namespace splash::cli
