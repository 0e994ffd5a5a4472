#pragma once
// What the other cases of a report tell of a kernel, where counts of this one do not suffice.

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "analysis/roofline.h"

namespace splash::analysis {

// The same kernel on the same problem with more or fewer blocks: another number of heads, of the same lengths
// and timed by the same method where there is such a case. Where more blocks do more work a second, the
// multiprocessors had room; where they do not, something in them is busy, whether or not it was counted.
struct Scaling {
  std::string case_id;  // of the other case
  double blocks = 1;    // there / here: of the launch, or resident
  double rate = 1;      // products a second there / here, without launches
  // The time of a wave with r blocks on a multiprocessor is taken as latency + r * share, from both cases:
  // the part of the time here that grows with r. NaN where r is the same in both.
  double busy = std::numeric_limits<double>::quiet_NaN();
};

// The case with most blocks, else the one with fewest. None: no case differs in blocks alone.
std::optional<Scaling> scaling_of(const KernelCase& kernel, const std::vector<KernelCase>& others,
                                  const Multiprocessors& machine,
                                  const std::vector<report::Ceiling>& ceilings);

// From a neighbouring rung that is the same kernel function on the same problem, as many threads and, within
// a tenth, as much work, of which a multiprocessor holds another number of blocks: for its tiles are others.
std::optional<Scaling> residency_of(const KernelCase& kernel, const std::vector<KernelCase>& others,
                                    const Multiprocessors& machine,
                                    const std::vector<report::Ceiling>& ceilings);

// The same kernel with one thing of the problem's setting changed: its time shows what hangs on that thing.
struct Clue {
  std::string case_id;
  std::string words;  // "top_k_block 2 of 64 instead of top_k_block 8 of 64"
  double time = 1;    // there / here
};

// One a changed thing, the farthest time of it; those that differ by a tenth at least, the farthest first.
std::vector<Clue> clues_of(const KernelCase& kernel, const std::vector<KernelCase>& others);

}  // namespace splash::analysis
