#pragma once
// An older report with the labels that this build would give it.

#include "report/report.h"

namespace splash::experiments {

struct Migrated {
  int64_t parameters = 0, kernel_names = 0;  // entries that were otherwise
};

// Parameters as the kinds use them (Kind::used), and names of kernels that an older reader of Nsight
// Compute's tables spoilt. Nothing that was measured, counted or judged is touched. Throws ReportError where
// the report does not tell what its cases are, InvalidArgument where a recorded definition no longer fits its
// kind.
Migrated migrate(report::Report& report);

}  // namespace splash::experiments
