#pragma once
// Rungs that choose among others by a rule, and what was measured instead (tuned.h). A rung that chooses
// declares its candidates once; the search, `splash run` and `splash what-if` read that. Compiles without
// nvcc.
//
//   if (const Variant* const tuned = tuned_variant("large_dims/7-chosen", spec, dtype, device)) ...

#include <string>
#include <vector>

#include "gpu/engine/variant.h"

namespace splash::gpu {

struct Chooser {
  std::string rung;                     // its id
  std::vector<std::string> candidates;  // ids; all compute what the rung computes
};

const std::vector<Chooser>& choosers();  // in the order in which they were linked
const Chooser* find_chooser(const std::string& rung);

// The candidate that was measured to be quickest on the device for this problem. nullptr where nothing was
// measured, or where what is cached is no candidate, or one that does not take the problem: then the rule
// holds, and one sentence on stderr says so.
const Variant* tuned_variant(const std::string& rung, const AttentionSpec& spec, Dtype dtype,
                             const DeviceInfo& device);

struct ChooserRegistration {
  explicit ChooserRegistration(Chooser chooser);
};

}  // namespace splash::gpu
