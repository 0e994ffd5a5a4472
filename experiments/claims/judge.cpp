#include "experiments/claims/judge.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "experiments/claims/arithmetic.h"

namespace splash::experiments {
namespace {

using report::ClaimResult;
using report::kMissing;
using report::Verdict;

constexpr const char* kOwnSource = "this project";
const std::string kUnsure =
    "{ours}, but anything in [{low}, {high}] is possible, and not all of it bears out {theirs}";

std::string filled(std::string text, const std::string& name, const std::string& value) {
  const std::string hole = "{" + name + "}";
  for (std::size_t at = text.find(hole); at != std::string::npos; at = text.find(hole, at + value.size())) {
    text.replace(at, hole.size(), value);
  }
  return text;
}

std::string fill_reason(const std::string& reason, const Claim& claim, const Measured& measured) {
  std::string text = filled(reason, "ours", fmt::format("{:.4g}", measured.ours));
  text = filled(text, "theirs", claim.theirs);
  text = filled(text, "low", fmt::format("{:.4g}", measured.low));
  return filled(text, "high", fmt::format("{:.4g}", measured.high));
}

ClaimResult blank(const Claim& claim) {
  ClaimResult result;
  result.id = claim.id;
  result.source = claim.source;
  result.claim = claim.text;
  result.units = claim.units;
  result.theirs = claim.theirs;
  result.theirs_value = claim.theirs_value;
  result.tolerance = claim.tolerance;
  result.method = claim.method;
  result.ours = result.ours_low = result.ours_high = kMissing;
  result.verdict = Verdict::not_comparable;
  return result;
}

ClaimResult unmeasured(const Claim& claim) {
  ClaimResult result = blank(claim);
  if (!claim.not_comparable.empty()) {
    result.reason = claim.not_comparable;
  } else if (claim.method == "gpu") {
    result.reason = "needs a GPU measurement; none is in this report";
  } else if (claim.method == "arithmetic") {
    result.reason = "nobody has written its arithmetic down";
  } else {
    result.reason = "no case of this report measures it";
  }
  return result;
}

Verdict verdict_of(const Claim& claim, const Measured& measured) {
  const auto bears_out = [&](double value) {
    return holds(claim.relation, value, claim.theirs_value, claim.tolerance);
  };
  // The numbers that bear a claim out are one interval, so it is enough to test the ends and the value.
  const int64_t good = bears_out(measured.low) + bears_out(measured.ours) + bears_out(measured.high);
  if (good == 3) return Verdict::reproduced;
  const bool around = measured.low < claim.theirs_value && claim.theirs_value < measured.high;
  return good == 0 && !(around && claim.relation == Relation::equal) ? Verdict::refuted : Verdict::unsure;
}

struct Found {
  Measured measured;
  Verdict verdict;
};

// Several runs of the same experiments.
class Runs {
 public:
  Runs(const report::Report& report, std::span<const report::Report> others) : runs_{&report} {
    for (const report::Report& other : others) runs_.push_back(&other);
  }
  Measured measure(const std::string& experiment, const Expectation& expectation) const {
    std::vector<Measured> of_runs;
    for (const report::Report* run : runs_)
      of_runs.push_back(experiments::measure(*run, experiment, expectation));
    const Measured all = pooled(of_runs);
    return all.found() ? all : of_runs.front();  // its text says what was looked for
  }
  const report::Report& first() const { return *runs_.front(); }

 private:
  std::vector<const report::Report*> runs_;
};

std::vector<Found> measurements(const Claim& claim, const std::vector<Definition>& definitions,
                                const Runs& runs) {
  std::vector<Found> found;
  auto add = [&](const Measured& measured) {
    if (!measured.found() || std::isnan(measured.ours)) return;
    found.push_back({measured, verdict_of(claim, measured)});
  };
  const auto& judges = arithmetic_judges();
  if (const auto arithmetic = judges.find(claim.id); arithmetic != judges.end()) {
    const Arithmetic computed = arithmetic->second();
    add({computed.ours, computed.ours, computed.ours, 1, computed.formula});
  }
  for (const Definition& definition : definitions) {
    for (const Expectation& expectation : definition.expectations) {
      if (expectation.claim == claim.id) add(runs.measure(definition.name, expectation));
    }
  }
  return found;
}

ClaimResult judge_check(const Definition& definition, const Expectation& expectation, const Runs& runs) {
  Claim claim;
  claim.id = definition.name + "/" + expectation.check;
  claim.source = kOwnSource;
  claim.theirs = fmt::format("{} {:g}",
                             expectation.relation == Relation::equal   ? "="
                             : expectation.relation == Relation::below ? "<="
                                                                       : ">=",
                             expectation.bound);
  claim.theirs_value = expectation.bound;
  claim.relation = expectation.relation;
  claim.tolerance = expectation.tolerance;
  claim.units = "1";
  if (const report::Column* column = runs.first().find(expectation.measured.column);
      column != nullptr && !expectation.over) {
    claim.units = column->info.units;
  }
  claim.method = "cpu";
  const Measured measured = runs.measure(definition.name, expectation);
  claim.text = measured.formula;
  claim.reproduced = "the check holds: {ours}";
  claim.refuted = "the check does not hold: {ours}, allowed is {theirs}";
  claim.not_comparable = measured.why_none;
  if (!measured.found()) return unmeasured(claim);
  return judge(claim, measured);
}

}  // namespace

bool holds(Relation relation, double ours, double theirs, double tolerance) {
  switch (relation) {
    case Relation::equal:
      return std::abs(ours - theirs) <= tolerance;
    case Relation::below:
      return ours <= theirs + tolerance;
    case Relation::above:
      return ours >= theirs - tolerance;
  }
  return false;
}

ClaimResult judge(const Claim& claim, const Measured& measured) {
  ClaimResult result = blank(claim);
  result.verdict = verdict_of(claim, measured);
  result.ours = measured.ours;
  result.ours_low = measured.low;
  result.ours_high = measured.high;
  const std::string& reason = result.verdict == Verdict::reproduced ? claim.reproduced
                              : result.verdict == Verdict::refuted  ? claim.refuted
                                                                    : kUnsure;
  result.reason = fill_reason(reason, claim, measured);
  if (!measured.formula.empty()) result.reason += fmt::format(" ({})", measured.formula);
  return result;
}

std::vector<ClaimResult> judge_all(const std::vector<Claim>& claims,
                                   const std::vector<Definition>& definitions, const report::Report& report,
                                   std::span<const report::Report> other_runs) {
  const Runs runs(report, other_runs);
  std::vector<ClaimResult> results;
  for (const Claim& claim : claims) {
    const std::vector<Found> found =
        claim.comparable ? measurements(claim, definitions, runs) : std::vector<Found>{};
    if (found.empty()) {
      results.push_back(unmeasured(claim));
      continue;
    }
    // The first measurement that refutes the claim decides; if none does, the first that is unsure.
    const auto first = [&](Verdict verdict) { return std::ranges::find(found, verdict, &Found::verdict); };
    auto deciding = first(Verdict::refuted);
    if (deciding == found.end()) deciding = first(Verdict::unsure);
    if (deciding == found.end()) deciding = found.begin();
    const int64_t bearing_out = std::ranges::count(found, Verdict::reproduced, &Found::verdict);
    results.push_back(judge(claim, deciding->measured));
    if (found.size() > 1) {
      results.back().reason += fmt::format("; {} of {} measurements bear it out", bearing_out, found.size());
    }
  }
  for (const Definition& definition : definitions) {
    for (const Expectation& expectation : definition.expectations) {
      if (!expectation.check.empty()) results.push_back(judge_check(definition, expectation, runs));
    }
  }
  return results;
}

std::vector<Claim> claims_of(const std::vector<Definition>& definitions, const std::vector<Claim>& claims) {
  std::vector<Claim> result;
  for (const Claim& claim : claims) {
    bool named = false;
    for (const Definition& definition : definitions) {
      for (const Expectation& expectation : definition.expectations)
        named = named || expectation.claim == claim.id;
    }
    if (named) result.push_back(claim);
  }
  return result;
}

Surprises surprises(const std::vector<Claim>& claims, const std::vector<ClaimResult>& results) {
  Surprises found;
  for (const ClaimResult& result : results) {
    auto& sentences = result.verdict == Verdict::unsure ? found.unsure : found.differing;
    if (result.source == kOwnSource &&
        (result.verdict == Verdict::refuted || result.verdict == Verdict::unsure)) {
      sentences.push_back(fmt::format("{}: {}", result.id, result.reason));
    }
    const Claim* claim = find_claim(claims, result.id);
    if (claim == nullptr || !claim->expected_verdict || *claim->expected_verdict == result.verdict) continue;
    if (result.verdict == Verdict::not_comparable) continue;    // this run did not measure it
    if (*claim->expected_verdict == Verdict::unsure) continue;  // the record was unsure, too
    sentences.push_back(fmt::format("claim {} is {}, where this project recorded {}", result.id,
                                    report::to_string(result.verdict),
                                    report::to_string(*claim->expected_verdict)));
  }
  return found;
}

}  // namespace splash::experiments
