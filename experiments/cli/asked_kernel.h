#pragma once
// Counts of a recorded kernel on a problem, on a GPU or with tiles for which it was not measured.

#include <string>
#include <vector>

#include "analysis/changes.h"
#include "analysis/machine.h"
#include "experiments/cli/command.h"
#include "experiments/runner/kind.h"
#include "report/report.h"

namespace splash::cli {

// The changes that `splash what-if` takes: parameters of the problem, and tile_q, tile_k, stages, launches,
// method.
struct AskedChanges {
  experiments::Parameters problem;
  analysis::Change cut{};
  std::string words;  // as given; "" if there are none

  bool empty() const { return words.empty(); }
};

// Parses NAME=VALUE words; throws InvalidArgument if a word is not of that form.
AskedChanges parse_changes(const Words& settings);

struct AskedKernel {
  analysis::KernelCase uncut;  // with its own tiles, on the problem and GPU asked about
  analysis::KernelCase kernel;
  bool measured = false;  // nothing changed: it is the recorded case
};

// If the problem or the GPU changes, counts come from the variant's declaration. Throws NotBuilt in a build
// without CUDA parts, and InvalidArgument if this build does not know the variant or now counts other work
// for it than when the report was recorded. Without the declaration, only a multiple of the batch entries
// follows, from the recorded counts.
AskedKernel asked_kernel(const report::Report& report, const analysis::KernelCase& recorded,
                         const AskedChanges& changes, const analysis::Machine& here,
                         const analysis::Machine& there);

}  // namespace splash::cli
