#pragma once
// Claims that need no measurement. They are recomputed from the sources' own numbers.

#include <functional>
#include <map>
#include <string>

namespace splash::experiments {

struct Arithmetic {
  double ours = 0;      // in the claim's units
  std::string formula;  // how it was computed, numbers included
};

// The computation of each claim, by claim id. Each claim of data/claims with method = "arithmetic" has one.
const std::map<std::string, std::function<Arithmetic()>>& arithmetic_judges();

}  // namespace splash::experiments
