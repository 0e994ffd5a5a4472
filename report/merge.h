#pragma once
// Joins the shards of one run into one report.

#include <span>

#include "report/report.h"

namespace splash::report {

// Joins the cases of all shards, ordered by the numeric column `case_index` if there is one. Columns are
// united: if a shard lacks a column, its cases are missing there. A case (by `case_id`) that several shards
// have must have the same reproducible results in each, and is taken from the first. For each ceiling (by
// name and dtype) the first is kept. Machine descriptions are listed; `started` is the earliest and
// `finished` the latest.
//
// The status is "interrupted" if any shard's is, otherwise "complete"; only the caller knows whether cases
// are missing altogether. Claims are left out, because they are to be judged again over all cases.
//
// Throws ReportError that says which: no shards; shards of another experiment, commit, seed or inputs; or
// columns or cases that contradict one another.
Report merge_reports(std::span<const Report> shards);

}  // namespace splash::report
