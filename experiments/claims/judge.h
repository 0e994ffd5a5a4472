#pragma once
// Gives each claim a verdict: the source's number against that of arithmetic or of a report.

#include <span>
#include <string>
#include <vector>

#include "experiments/claims/claim.h"
#include "experiments/claims/measure.h"
#include "report/report.h"

namespace splash::experiments {

// Whether `ours` bears out a value or bound of `theirs`.
bool holds(Relation relation, double ours, double theirs, double tolerance);

// Judges one claim by one measurement: reproduced where its whole interval bears the claim out, refuted where
// none of it does, else unsure.
report::ClaimResult judge(const Claim& claim, const Measured& measured);

// Every claim, in order: arithmetic ones recomputed, the others by the expectations of these definitions on
// this report; those without a measurement are not comparable. A claim with several expectations is refuted
// where one of them refutes it, and reproduced only where each of them bears it out. The definitions' own
// checks follow, as claims of the source "this project". other_runs: of the same experiments; what they
// measured is pooled with what the report did.
std::vector<report::ClaimResult> judge_all(const std::vector<Claim>& claims,
                                           const std::vector<Definition>& definitions,
                                           const report::Report& report,
                                           std::span<const report::Report> other_runs = {});

// The claims that these definitions speak of.
std::vector<Claim> claims_of(const std::vector<Definition>& definitions, const std::vector<Claim>& claims);

// What is not as this project recorded it, a sentence each; claims that this run did not measure are left
// out.
struct Surprises {
  std::vector<std::string> differing;  // another verdict than expected_verdict, checks that do not hold
  std::vector<std::string> unsure;     // of which this run cannot tell
};
Surprises surprises(const std::vector<Claim>& claims, const std::vector<report::ClaimResult>& results);

}  // namespace splash::experiments
