#pragma once
// Makes the shell command that profiles a recorded case.

#include <string>

#include "analysis/roofline.h"

namespace splash::cli {

// "wmma-8-cp-async-0cb9a2c6fe64e500.csv": where profile_command() has ncu write.
std::string table_of(const analysis::KernelCase& kernel);

// The name of a case's q, k and v where gpu_bench does not make them: those of a model or of a file. Empty
// where they are Gaussian.
std::string captured_input(const report::Report& report, const analysis::KernelCase& kernel);

// One shell line: ncu on one call of gpu_bench with the case's problem. It writes its counters as a table to
// the current folder. Throws ReportError if the report lacks a parameter, InvalidArgument where there is a
// captured_input: the counters would be of another problem.
std::string profile_command(const report::Report& report, const analysis::KernelCase& kernel);

}  // namespace splash::cli
