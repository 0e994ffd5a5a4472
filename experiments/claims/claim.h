#pragma once
// The claims that the project answers, in the format of data/claims/*.toml:
//
//   [[claim]]
//   id = "S0.1"                          source = "000 splash fix plan"
//   text = "K_KEEP 8 of 2048 keys skips 99.6 % of the operations"
//   theirs = "99.6 %"                    theirs_value = 99.6            units = "%"
//   relation = "equal"                   # or "below", "above": theirs is a bound
//   tolerance = 0.05                     # in the claim's units; or relative_tolerance = 0.01
//   theirs_range = [10, 15]              # if the source names a range; then without the three above
//   method = "arithmetic"                # or "cpu", "gpu"
//   reproduced = "8 of 2048 keys are {ours}"        # reasons; {ours} {theirs} {low} {high} are filled in
//   refuted = "it is {ours}, not {theirs}"
//   not_comparable = "no such kernel exists here"   # the reason if nothing was measured
//   comparable = false                   # never judged; needs not_comparable
//   expected_verdict = "reproduced"      # what this project found before; if another verdict comes out,
//                                        # `splash reproduce` exits 1

#include <optional>
#include <string>
#include <vector>

#include "experiments/runner/definition.h"
#include "report/report.h"

namespace splash::experiments {

struct Claim {
  std::string id, source, text, theirs, units, method;
  double theirs_value = 0;  // the middle of a range; NaN if comparable is false and there is no number
  Relation relation = Relation::equal;
  double tolerance = 0;  // absolute; half the width of a range
  std::string reproduced, refuted, not_comparable;
  bool comparable = true;
  std::optional<report::Verdict> expected_verdict;
};

// Reads all [[claim]] of all *.toml of the folder: files by name, claims in the order of the file. Throws
// InvalidArgument with file and line, also if an id is used twice.
std::vector<Claim> read_claims(const std::string& folder);
std::vector<Claim> parse_claims(const std::string& toml, const std::string& file);

const Claim* find_claim(const std::vector<Claim>& claims,
                        const std::string& id);  // nullptr if there is none

// Throws InvalidArgument if an expectation names an unknown claim, and suggests the nearest.
void require_known_claims(const Definition& definition, const std::vector<Claim>& claims);

}  // namespace splash::experiments
