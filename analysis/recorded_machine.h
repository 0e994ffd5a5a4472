#pragma once
// The GPU that a report was recorded on, whether a file of data/machines describes it or not.

#include <optional>
#include <vector>

#include "analysis/machine.h"
#include "report/report.h"

namespace splash::analysis {

// The machine that claims the report's GPU. If none does, what the report itself tells: of imported kernels
// by their columns, else by its provenance. Such a machine has no peaks, no L1, and L2 of one partition or of
// none; what its multiprocessors hold follows from their compute capability. If that is not enough either,
// find_machine() returns nothing, and machine_of() throws InvalidArgument that says what is missing.
std::optional<Machine> find_machine(const report::Report& report, const std::vector<Machine>& machines);
Machine machine_of(const report::Report& report, const std::vector<Machine>& machines);

}  // namespace splash::analysis
