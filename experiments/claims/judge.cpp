#include "experiments/claims/judge.h"

#include <cmath>

#include <fmt/format.h>

#include "experiments/claims/arithmetic.h"

namespace splash::experiments {
namespace {

using analysis::ClaimResult;
using analysis::kMissing;
using analysis::Verdict;

constexpr const char* kOwnSource = "this project";

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

struct Found {
  Measured measured;
  bool bears_out = false;
};

std::vector<Found> measurements(const Claim& claim, const std::vector<Definition>& definitions,
                                const analysis::Report& report) {
  std::vector<Found> found;
  auto add = [&](const Measured& measured) {
    // A statistic that is not a number (0/0) says nothing.
    if (!measured.found() || std::isnan(measured.ours)) return;
    found.push_back({measured, holds(claim.relation, measured.ours, claim.theirs_value, claim.tolerance)});
  };
  const auto& judges = arithmetic_judges();
  if (const auto arithmetic = judges.find(claim.id); arithmetic != judges.end()) {
    const Arithmetic computed = arithmetic->second();
    add({computed.ours, computed.ours, computed.ours, 1, computed.formula});
  }
  for (const Definition& definition : definitions) {
    for (const Expectation& expectation : definition.expectations) {
      if (expectation.claim == claim.id) add(measure(report, definition.name, expectation));
    }
  }
  return found;
}

ClaimResult judge_check(const Definition& definition, const Expectation& expectation,
                        const analysis::Report& report) {
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
  if (const analysis::Column* column = report.find(expectation.measured.column);
      column != nullptr && !expectation.over) {
    claim.units = column->info.units;
  }
  claim.method = "cpu";
  const Measured measured = measure(report, definition.name, expectation);
  claim.text = measured.formula;
  claim.reproduced = "the check holds: {ours}";
  claim.refuted = "the check does not hold: {ours}, allowed is {theirs}";
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
  const bool good = holds(claim.relation, measured.ours, claim.theirs_value, claim.tolerance);
  result.verdict = good ? Verdict::reproduced : Verdict::refuted;
  result.ours = measured.ours;
  result.ours_low = measured.low;
  result.ours_high = measured.high;
  result.reason = fill_reason(good ? claim.reproduced : claim.refuted, claim, measured);
  if (!measured.formula.empty()) result.reason += fmt::format(" ({})", measured.formula);
  return result;
}

std::vector<ClaimResult> judge_all(const std::vector<Claim>& claims,
                                   const std::vector<Definition>& definitions,
                                   const analysis::Report& report) {
  std::vector<ClaimResult> results;
  for (const Claim& claim : claims) {
    const std::vector<Found> found =
        claim.comparable ? measurements(claim, definitions, report) : std::vector<Found>{};
    if (found.empty()) {
      results.push_back(unmeasured(claim));
      continue;
    }
    // The first measurement that speaks against the claim decides.
    std::size_t deciding = 0;
    int64_t bearing_out = 0;
    for (std::size_t i = found.size(); i-- > 0;) {
      bearing_out += found[i].bears_out;
      if (!found[i].bears_out) deciding = i;
    }
    results.push_back(judge(claim, found[deciding].measured));
    if (found.size() > 1) {
      results.back().reason += fmt::format("; {} of {} measurements bear it out", bearing_out, found.size());
    }
  }
  for (const Definition& definition : definitions) {
    for (const Expectation& expectation : definition.expectations) {
      if (!expectation.check.empty()) results.push_back(judge_check(definition, expectation, report));
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

std::vector<std::string> surprises(const std::vector<Claim>& claims,
                                   const std::vector<ClaimResult>& results) {
  std::vector<std::string> sentences;
  for (const ClaimResult& result : results) {
    if (result.source == kOwnSource && result.verdict == Verdict::refuted) {
      sentences.push_back(fmt::format("{}: {}", result.id, result.reason));
    }
    const Claim* claim = find_claim(claims, result.id);
    if (claim == nullptr || !claim->expected_verdict || *claim->expected_verdict == result.verdict) continue;
    if (result.verdict == Verdict::not_comparable) continue;  // not measured in this run
    sentences.push_back(fmt::format("claim {} is {}, where this project recorded {}", result.id,
                                    analysis::to_string(result.verdict),
                                    analysis::to_string(*claim->expected_verdict)));
  }
  return sentences;
}

}  // namespace splash::experiments
