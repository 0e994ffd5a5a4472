#pragma once
// Gives each claim a verdict: compares the source's number with one from arithmetic or from a report.

#include <span>
#include <string>
#include <vector>

#include "experiments/claims/claim.h"
#include "experiments/claims/measure.h"
#include "report/report.h"

namespace splash::experiments {

// Whether `ours` bears out a value or bound of `theirs`.
bool holds(Relation relation, double ours, double theirs, double tolerance);

// Judges one claim by one measurement: reproduced if its whole interval bears the claim out, refuted if no
// part of it does, otherwise unsure.
report::ClaimResult judge(const Claim& claim, const Measured& measured);

// Judges every claim, in order. Arithmetic claims are recomputed. The others follow from the expectations of
// these definitions on this report; those without a measurement are not comparable. A claim with several
// expectations is refuted if one of them refutes it, and reproduced only if all of them bear it out. The
// definitions' own checks follow as claims of the source "this project". other_runs: runs of the same
// experiments, whose measurements are pooled with the report's.
std::vector<report::ClaimResult> judge_all(const std::vector<Claim>& claims,
                                           const std::vector<Definition>& definitions,
                                           const report::Report& report,
                                           std::span<const report::Report> other_runs = {});

// The claims that the expectations of these definitions name.
std::vector<Claim> claims_of(const std::vector<Definition>& definitions, const std::vector<Claim>& claims);

// What differs from this project's record, one sentence each. Claims that this run did not measure are left
// out.
struct Surprises {
  std::vector<std::string> differing;  // a verdict other than expected_verdict; checks that do not hold
  std::vector<std::string> unsure;     // claims and checks that this run cannot decide
};
Surprises surprises(const std::vector<Claim>& claims, const std::vector<report::ClaimResult>& results);

}  // namespace splash::experiments
