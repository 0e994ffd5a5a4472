#pragma once
// Two reports of the same experiment, side by side: what changed, and is it worse?
//
// Cases are matched by their parameters, not by case_id, which also covers the binary and the inputs, the
// things that changed. Experiments of other names are partners too where both reports have the text column
// `kind`. Cases of a peer (text column `implementation`, "torch-…") are compared and regress nothing.
// Reproducible results must agree. Raw times are judged by distribution-free confidence intervals of their
// medians.

#include <span>
#include <string>
#include <vector>

#include "analysis/statistics.h"
#include "report/report.h"

namespace splash::analysis {

constexpr const char* kKindColumn = "kind";

enum class Difference { same, different, faster, slower, unsure };
const char* to_string(Difference found);  // "SAME", "DIFFERENT", "FASTER", "SLOWER", "UNSURE"

struct CompareOptions {
  double relative_tolerance = 1e-9;  // of reproducible numbers: |a - b| / max(|a|, |b|)
  double time_threshold = 0.02;      // medians that differ by less than this share count as equal
  double confidence = 0.95;          // of the median intervals, and against the chance order of runs
};

// One reproducible result column over all matched cases.
struct ColumnChange {
  std::string column;
  Difference difference = Difference::same;               // same or different
  int64_t cases = 0, differing = 0, differing_peers = 0;  // the last: those of `differing` that are peers'
  double max_difference = 0;     // relative; infinite where one side is NaN, infinite or another text
  double before = 0, after = 0;  // in the case of the largest difference; NaN for a text column
  std::string worst_case;        // parameters of that case; "" if all cases agree
};

// One column of raw times (units s, along `sample`, not reproducible) of one matched case.
struct TimeChange {
  std::string column,
      case_parameters;  // "experiment=e, kv_len=4096": those that differ within the experiment
  std::string case_id_before, case_id_after;
  Difference difference = Difference::unsure;  // same, faster, slower or unsure
  bool peer = false;
  int64_t runs_before = 1, runs_after = 1;  // that have the case
  double before = 0, after = 0;             // medians in seconds; of several runs the median of their medians
  Interval before_interval, after_interval;  // of the median; where both sides have several runs, from the
                                             // fastest run's median to the slowest's
  double ratio = 0;                          // after / before
  std::string note;                          // why it is unsure, and what spoilt a side's samples
};

struct ClaimChange {
  std::string id, before, after;  // verdicts; "absent" where a report does not judge the claim
  bool regressed = false;         // it was reproduced before and is not now
};

struct Comparison {
  int64_t matched_cases = 0;
  std::vector<ColumnChange> columns;
  std::vector<TimeChange> times;
  std::vector<ClaimChange> claims;                   // only those whose verdict changed
  std::vector<std::string> only_before, only_after;  // parameters of the cases without a partner
  bool lost = false;                                 // a case of `before` that is not a peer's has no partner
  bool regressed = false;  // something of no peer is DIFFERENT or SLOWER, or a claim has regressed
};

// Each side is one run or several of the same experiments. Reproducible results and claims are those of the
// first. Where both sides have several runs of a case, times are judged by the spread between the runs:
// SLOWER is what was slower in every run after than in every run before, if chance alone orders so many runs
// like that more rarely than `confidence` allows (3 and 3 runs at 95 %).
Comparison compare_runs(std::span<const report::Report> before, std::span<const report::Report> after,
                        const CompareOptions& options = {});

Comparison compare_reports(const report::Report& before, const report::Report& after,
                           const CompareOptions& options = {});

}  // namespace splash::analysis
