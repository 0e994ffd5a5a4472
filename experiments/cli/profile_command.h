#pragma once
// The shell command that profiles a recorded case.

#include <string>

#include "analysis/roofline.h"

namespace splash::cli {

// "wmma-8-cp-async-0cb9a2c6fe64e500.csv": where profile_command() has ncu write.
std::string table_of(const analysis::KernelCase& kernel);

// A line for a shell: ncu over one call of gpu_bench on the case's problem, its counters as a table in the
// current folder. Throws ReportError where the report lacks a parameter.
std::string profile_command(const report::Report& report, const analysis::KernelCase& kernel);

}  // namespace splash::cli
