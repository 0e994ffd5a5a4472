#pragma once
// Suggests what to try next on a kernel: changes that the model predicts to be worthwhile, and kernels that
// the same report measured to be faster on the same problem.

#include <functional>
#include <string>
#include <vector>

#include "analysis/changes.h"
#include "analysis/diagnosis.h"
#include "analysis/what_if.h"

namespace splash::analysis {

// A change of one kind, in the words that `splash what-if` takes.
struct NextStep {
  std::string changes;  // "tile_q=64 tile_k=128"
  double gain = 1;      // time of the same work now / after the change
  double low = 1, high = 1;
};

constexpr double kWorthwhile = 1.1;

// Applies a change to a kernel's counts. Throws InvalidArgument or Unsupported if it cannot be made.
using CountChange = std::function<KernelCase(const KernelCase&, const Change&)>;

// The best change of each kind whose predicted gain is at least kWorthwhile, largest gain first. The kinds
// are: other tiles; one launch, a graph or both; and, if a finding says too few blocks, more batch entries.
std::vector<NextStep> next_steps(const KernelCase& kernel, const Diagnosis& diagnosis,
                                 const Predictor& predictor, const Multiprocessors& machine,
                                 const CountChange& count = changed);

// The fastest kernel of its ladder on its problem, if that is at least kWorthwhile times as fast; otherwise
// null.
const KernelCase* faster_rung(const KernelCase& kernel, const std::vector<KernelCase>& others);

}  // namespace splash::analysis
