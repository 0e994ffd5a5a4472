#pragma once
// Counts of a recorded kernel on a problem, on a GPU or with tiles that were not measured.

#include <string>
#include <vector>

#include "analysis/changes.h"
#include "analysis/machine.h"
#include "experiments/cli/command.h"
#include "experiments/runner/kind.h"
#include "report/report.h"

namespace splash::cli {

// What `splash what-if` takes: parameters of the problem, and tile_q, tile_k, stages, launches, method.
struct AskedChanges {
  experiments::Parameters problem;
  analysis::Change cut{};
  std::string words;  // as given, "" for none

  bool empty() const { return words.empty(); }
};

// Of NAME=VALUE words; throws InvalidArgument where one is none.
AskedChanges parse_changes(const Words& settings);

struct AskedKernel {
  analysis::KernelCase uncut;  // on the problem and GPU that are asked about
  analysis::KernelCase kernel;
  bool measured = false;  // it is the recorded case itself
};

// The problem and the GPU come from the variant's declaration, where they change; throws InvalidArgument in a
// build without it, and where it counts other work than when the report was recorded. More batch entries
// alone follow from the recorded counts there.
AskedKernel asked_kernel(const report::Report& report, const analysis::KernelCase& recorded,
                         const AskedChanges& changes, const analysis::Machine& here,
                         const analysis::Machine& there);

}  // namespace splash::cli
