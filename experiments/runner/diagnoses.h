#pragma once
// Diagnoses the kernels of a run, once all its cases are complete.

#include "report/report.h"

namespace splash::experiments {

// analysis::write_diagnoses() for a report of a GPU that a file of data/machines describes; does nothing
// where there is no such file, or no kernel was timed. Throws InvalidArgument where a file of data/machines
// is not right.
void add_diagnoses(report::Report& report);

}  // namespace splash::experiments
