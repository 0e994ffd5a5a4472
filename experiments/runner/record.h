#pragma once
// The definitions of a run as /provenance keeps them. Each stands verbatim after a comment line with its
// name, profile, --set changes and number of cases. Each can be run again; merge and judge read them back.

#include <string>
#include <vector>

#include "experiments/runner/definition.h"
#include "experiments/runner/plan.h"
#include "report/report.h"

namespace splash::experiments {

struct RecordedExperiment {
  Definition definition;  // as --set changed it
  std::string profile;    // "quick" or "full"
  int64_t cases = 0;      // over all shards
};

// `cases`: those of every shard.
std::string record(const std::vector<Definition>& definitions, bool quick,
                   const std::vector<PlannedCase>& cases);

// Throws InvalidArgument if a definition no longer fits its kind. Text that record() did not write gives an
// empty list.
std::vector<RecordedExperiment> read_record(const std::string& text);

// Gives the experiments of a report the names, and the report the record, of another report whose experiments
// have the same kinds and parameters, whatever their files were called. Else leaves it as it is. Throws as
// read_record does.
void adopt_names(report::Report& report, const report::Report& of);

// Adds the text column `kind`, a parameter: the kind of each case's experiment as the record tells it, also
// of kinds that are no longer there. Adds none if the report's experiments are not all on record.
void add_kinds(report::Report& report);

std::vector<Definition> definitions_of(const std::vector<RecordedExperiment>& experiments);

}  // namespace splash::experiments
