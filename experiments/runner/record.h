#pragma once
// What was run, as /provenance keeps it: every definition verbatim, behind a comment line with its name,
// profile, --set changes and number of cases. Any piece of it can be run again; merge and judge read it back.

#include <string>
#include <vector>

#include "experiments/runner/definition.h"
#include "experiments/runner/plan.h"

namespace splash::experiments {

struct RecordedExperiment {
  Definition definition;
  std::string profile;  // "quick" or "full"
  int64_t cases = 0;    // of all shards
};

// `cases`: those of every shard.
std::string record(const std::vector<Definition>& definitions, bool quick,
                   const std::vector<PlannedCase>& cases);

// Throws InvalidArgument where a definition no longer fits its kind. Text that record() did not write gives
// none.
std::vector<RecordedExperiment> read_record(const std::string& text);
std::vector<Definition> definitions_of(const std::vector<RecordedExperiment>& experiments);

}  // namespace splash::experiments
