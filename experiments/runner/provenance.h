#pragma once
// The origin of a report: program, machine, inputs.

#include <string>
#include <vector>

#include "experiments/runner/plan.h"
#include "report/report.h"

namespace splash::experiments {

// Everything but the times and the definitions. `cases`: those of every shard, so that all shards of a run
// agree.
report::Provenance collect_provenance(const std::vector<Definition>& definitions,
                                      const std::vector<PlannedCase>& cases, const std::string& argv);

std::string utc_now();     // "2025-01-31T12:00:00Z"
std::string new_run_id();  // date, time and eight random digits

std::string cpu_model();  // "unknown" if the system does not tell
std::string toolchain();  // compiler, build type, flags, libraries

}  // namespace splash::experiments
