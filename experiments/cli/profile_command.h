#pragma once
// Makes the shell command that profiles a recorded case.

#include <string>

#include "analysis/roofline.h"

namespace splash::cli {

// "wmma-8-cp-async-0cb9a2c6fe64e500.csv": where profile_command() has ncu write.
std::string table_of(const analysis::KernelCase& kernel);

// One shell line: ncu on one call of gpu_bench with the case's problem. It writes its counters as a table to
// the current folder. Throws ReportError if the report lacks a parameter.
std::string profile_command(const report::Report& report, const analysis::KernelCase& kernel);

}  // namespace splash::cli
