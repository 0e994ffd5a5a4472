#pragma once
// The report columns that hold what a kernel's run through simulated caches gave.

#include <optional>
#include <string>
#include <vector>

#include "report/report.h"

namespace splash::analysis {

// Bytes of a first call, with L2 empty. The columns are labelled simulated; working sets are counted.
struct SimulatedCase {
  double l1_hit_bytes = 0;
  double l2_bytes = 0;  // asked of L2
  double l2_hit_bytes = 0;
  double dram_read_bytes = 0, dram_write_bytes = 0;  // write: without what L2 still holds at the end
  double dram_apart_bytes = 0;                       // read and written if L2 is emptied before each kernel
  double block_working_set = 0, wave_working_set = 0;
  double l2_holds_keys = 0;  // the largest number of keys whose full wave stays in L2; NaN: not known
};

// The columns of a report, and the member that each fills.
struct SimulatedColumn {
  double SimulatedCase::*member = nullptr;
  report::ColumnInfo info;
};
const std::vector<SimulatedColumn>& simulated_columns();

// Empty if the report has no such columns or the case was not simulated.
std::optional<SimulatedCase> simulated_case(const report::Report& report, int64_t row);

}  // namespace splash::analysis
