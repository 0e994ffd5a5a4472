#pragma once
// The claims that the project answers, as data/claims/*.toml keeps them:
//
//   [[claim]]
//   id = "S0.1"                          source = "000 splash fix plan"
//   text = "K_KEEP 8 of 2048 keys skips 99.6 % of the operations"
//   theirs = "99.6 %"                    theirs_value = 99.6            units = "%"
//   relation = "equal"                   # or "below", "above": theirs is a bound
//   tolerance = 0.05                     # in the claim's units; or relative_tolerance = 0.01
//   theirs_range = [10, 15]              # in place of these three, where the source names a range
//   method = "arithmetic"                # or "cpu", "gpu"
//   reproduced = "8 of 2048 keys are {ours}"        # reasons; {ours} {theirs} {low} {high} are filled in
//   refuted = "it is {ours}, not {theirs}"
//   not_comparable = "no such kernel exists here"   # the reason where nothing was measured
//   comparable = false                   # never judged; needs not_comparable
//   expected_verdict = "reproduced"      # what this project found before; `splash reproduce` exits 1 where
//   it differs

#include <optional>
#include <string>
#include <vector>

#include "experiments/runner/definition.h"
#include "report/report.h"

namespace splash::experiments {

struct Claim {
  std::string id, source, text, theirs, units, method;
  double theirs_value = 0;  // of a range its middle; NaN where comparable is false and no number is given
  Relation relation = Relation::equal;
  double tolerance = 0;  // absolute; of a range half its width
  std::string reproduced, refuted, not_comparable;
  bool comparable = true;
  std::optional<report::Verdict> expected_verdict;
};

// All [[claim]] of all *.toml of the folder, files by name, claims as they stand. Throws InvalidArgument with
// file and line, also where an id is used twice.
std::vector<Claim> read_claims(const std::string& folder);
std::vector<Claim> parse_claims(const std::string& toml, const std::string& file);

const Claim* find_claim(const std::vector<Claim>& claims,
                        const std::string& id);  // nullptr where there is none

// Throws InvalidArgument where an expectation names a claim that is not among these, suggesting the nearest.
void require_known_claims(const Definition& definition, const std::vector<Claim>& claims);

}  // namespace splash::experiments
