#pragma once
// Brings the labels of an older report up to date.

#include "report/report.h"

namespace splash::experiments {

struct Migrated {
  int64_t parameters = 0, kernel_names = 0;  // entries that were otherwise
};

// Corrects parameters to those that the kinds use (Kind::used), and kernel names that an older reader of
// Nsight Compute's tables garbled. Measured, counted and judged values do not change. Throws ReportError
// where the report does not tell what its cases are, InvalidArgument where a recorded definition no longer
// fits its kind.
Migrated migrate(report::Report& report);

}  // namespace splash::experiments
