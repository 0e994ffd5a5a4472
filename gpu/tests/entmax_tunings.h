#pragma once
// Tunings that together contain every value that a knob may have.

#include <algorithm>
#include <vector>

#include "gpu/entmax/knobs.h"

namespace splash::gpu::testing {

// Tunings of one pass. Each gives every knob one of its values, so that values of different knobs also meet.
// There are as many as the knob with most values has.
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
