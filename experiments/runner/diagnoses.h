#pragma once
// Diagnoses the kernels of a run, once all its cases are complete.

#include "report/report.h"

namespace splash::experiments {

// Calls analysis::write_diagnoses() if the report's GPU is known (analysis::find_machine()); does nothing if
// it is not or no kernel was timed. Throws InvalidArgument if a file of data/machines is faulty.
void add_diagnoses(report::Report& report);

}  // namespace splash::experiments
