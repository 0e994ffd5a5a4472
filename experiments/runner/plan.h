#pragma once
// The cases of a run, in order and with their ids, and the table of their results.

#include <string>
#include <vector>

#include "experiments/runner/definition.h"
#include "report/report.h"

namespace splash::experiments {

struct PlannedCase {
  std::size_t experiment = 0;  // index into the run's definitions
  int64_t index = 0;           // index into that definition's full list of cases, whatever the shard
  Parameters parameters;
  std::string parameters_hash, input_hash, case_id;
};

// Shard i of n (from 1) holds the cases whose index modulo n is i - 1.
struct Shard {
  int64_t index = 1, count = 1;
};
Shard parse_shard(const std::string& text);  // "2/8"; throws InvalidArgument
std::string to_string(const Shard& shard);

// Every case, or only those that an [[expect]] of their definition looks at.
enum class Cases { all, judged };

// All cases of the definitions, whatever the shard. Each case is checked. Throws InvalidArgument, also if
// Cases::judged leaves none.
std::vector<PlannedCase> plan(const std::vector<Definition>& definitions, bool quick,
                              Cases which = Cases::all);
std::vector<PlannedCase> cases_of(const Shard& shard, const std::vector<PlannedCase>& all);

// The coordinates that the kinds declare; throws InvalidArgument if two of them disagree.
std::vector<report::Dimension> dimensions_of(const std::vector<Definition>& definitions);

// Column order: experiment, case_id and case_index, then the parameters as the kinds use them (missing if
// they have no effect), then the results. Columns of the same name in several kinds become one column; throws
// InvalidArgument if they disagree on units or type. results[i] belongs to cases[i].
std::vector<report::Column> make_table(const std::vector<Definition>& definitions,
                                       const std::vector<PlannedCase>& cases,
                                       const std::vector<CaseResult>& results);

}  // namespace splash::experiments
