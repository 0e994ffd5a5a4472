#pragma once
// The definitions of a run as /provenance keeps them. Each stands verbatim after a comment line with its
// name, profile, --set changes and number of cases. Each can be run again; merge and judge read them back.

#include <string>
#include <vector>

#include "experiments/runner/definition.h"
#include "experiments/runner/plan.h"

namespace splash::experiments {

struct RecordedExperiment {
  Definition definition;
  std::string profile;  // "quick" or "full"
  int64_t cases = 0;    // over all shards
};

// `cases`: those of every shard.
std::string record(const std::vector<Definition>& definitions, bool quick,
                   const std::vector<PlannedCase>& cases);

// Throws InvalidArgument if a definition no longer fits its kind. Text that record() did not write gives an
// empty list.
std::vector<RecordedExperiment> read_record(const std::string& text);
std::vector<Definition> definitions_of(const std::vector<RecordedExperiment>& experiments);

}  // namespace splash::experiments
