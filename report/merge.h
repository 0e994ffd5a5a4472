#pragma once
// Joins the shards of one run into one report.

#include <span>

#include "report/report.h"

namespace splash::report {

// The cases of all shards, ordered by the numeric column `case_index` where there is one. Columns are united:
// where a shard lacks one, its cases are missing there. A case (by `case_id`) that several shards have must
// have the same reproducible results in each, and is taken from the first. Of ceilings (by name and dtype)
// the first is kept, machine descriptions are listed, `started` is the earliest and `finished` the latest.
//
// The status is "interrupted" if that of any shard is, else "complete": whether cases are missing altogether,
// the caller knows. Claims are left out, since they are to be judged again over all cases.
//
// Throws ReportError: no shards, shards of another experiment, commit, seed or inputs, columns or cases that
// contradict one another; says which.
Report merge_reports(std::span<const Report> shards);

}  // namespace splash::report
