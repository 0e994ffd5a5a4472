#pragma once
// Brings the labels of an older report up to date.

#include "report/report.h"

namespace splash::experiments {

struct Migrated {
  int64_t parameters = 0, kernel_names = 0;  // entries that changed
};

// Sets parameters to those that the kinds use (Kind::used), and corrects kernel names that an older reader of
// Nsight Compute's tables garbled. Measured, counted and judged values do not change. Throws ReportError if
// the report does not tell what its cases are, InvalidArgument if a recorded definition no longer fits its
// kind.
Migrated migrate(report::Report& report);

}  // namespace splash::experiments
