#pragma once
// Tunings that together hold every value that a knob may have.

#include <algorithm>
#include <vector>

#include "gpu/entmax/knobs.h"

namespace splash::gpu::testing {

// Of one pass: in each, every knob has one of its values, so that they also meet; few are enough for all.
inline std::vector<entmax::Tuning> every_value(bool of_backward) {
  std::size_t most = 0;
  for (const entmax::Knob& knob : entmax::knobs())
    if (knob.of_backward == of_backward) most = std::max(most, knob.allowed.size());
  std::vector<entmax::Tuning> tunings(most);
  for (std::size_t i = 0; i < most; ++i) {
    for (const entmax::Knob& knob : entmax::knobs())
      if (knob.of_backward == of_backward) tunings[i].*knob.value = knob.allowed[i % knob.allowed.size()];
  }
  return tunings;
}

}  // namespace splash::gpu::testing
