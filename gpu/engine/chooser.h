#pragma once
// Rungs (kernel variants of a ladder) that choose among other rungs. Such a rung chooses by a rule, unless a
// measurement is cached (tuned.h). It declares its candidates once; the search, `splash run` and
// `splash what-if` read that declaration. Compiles without nvcc.
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

const std::vector<Chooser>& choosers();                // in the order in which they were linked
const Chooser* find_chooser(const std::string& rung);  // nullptr if the rung chooses among none

// The candidate that was measured to be quickest on the device for this problem. nullptr means that the rule
// decides: nothing was measured, or the cached choice is no candidate or does not take the problem. In the
// latter two cases one sentence on stderr says so.
const Variant* tuned_variant(const std::string& rung, const AttentionSpec& spec, Dtype dtype,
                             const DeviceInfo& device);

struct ChooserRegistration {
  explicit ChooserRegistration(Chooser chooser);
};

}  // namespace splash::gpu
