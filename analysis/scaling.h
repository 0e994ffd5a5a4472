#pragma once
// Compares a kernel with other cases of its report, for times that its own counts do not explain.

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "analysis/roofline.h"

namespace splash::analysis {

// The same kernel on the same problem with more or fewer blocks: another number of heads and, if such a case
// exists, the same lengths and timing method. If more blocks do more work per second, the multiprocessors had
// room. If they do not, something inside the multiprocessors is busy, whether counted or not.
struct Scaling {
  std::string case_id;  // of the other case
  double blocks = 1;    // there / here: blocks of the launch, or resident blocks
  double rate = 1;      // products per second there / here, without launches
  // The share of the time here that grows with r, the blocks per multiprocessor. Model: a wave takes
  // latency + r * share, fitted to both cases. NaN where r is the same in both.
  double busy = std::numeric_limits<double>::quiet_NaN();
};

// Prefers the case with most blocks, otherwise takes the one with fewest. Empty if no case differs in blocks
// alone.
std::optional<Scaling> scaling_of(const KernelCase& kernel, const std::vector<KernelCase>& others,
                                  const Multiprocessors& machine,
                                  const std::vector<report::Ceiling>& ceilings);

// The same comparison with a neighbouring rung that has the same kernel function, problem and number of
// threads, and work within a tenth, but other tiles, so that a multiprocessor holds another number of its
// blocks.
std::optional<Scaling> residency_of(const KernelCase& kernel, const std::vector<KernelCase>& others,
                                    const Multiprocessors& machine,
                                    const std::vector<report::Ceiling>& ceilings);

// The same kernel with one setting of the problem changed. Its time shows what depends on that setting.
struct Clue {
  std::string case_id;
  std::string words;  // "top_k_block 2 of 64 instead of top_k_block 8 of 64"
  double time = 1;    // there / here
};

// One clue per changed setting: the case whose time differs most. Only differences of a tenth or more,
// largest first.
std::vector<Clue> clues_of(const KernelCase& kernel, const std::vector<KernelCase>& others);

}  // namespace splash::analysis
