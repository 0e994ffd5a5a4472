#pragma once
// What `splash new` writes: files of experiments/skeletons with their names filled in.

#include <string>
#include <vector>

namespace splash::cli {

struct Skeleton {
  std::vector<std::string> files;  // files written or, for a claim, added to; relative to the project
  std::string next_step;           // one sentence
};

// Each throws InvalidArgument, before it writes anything, for a name that is malformed or taken. No file is
// overwritten.
Skeleton new_rung(const std::string& name);     // "LADDER/NAME": the ladder's next rung
Skeleton new_kind(const std::string& name);     // "kebab-case"
Skeleton new_claim(const std::string& name);    // "P1.2a": goes to the file of the claims "P1."
Skeleton new_machine(const std::string& name);  // "kebab-case"

}  // namespace splash::cli
