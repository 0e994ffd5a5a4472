#pragma once
// The values that each knob of a Tuning allows. Not in tuning.h: nvcc warns about pointers to members.

#include <span>

#include "gpu/entmax/tuning.h"

namespace splash::gpu::entmax {

struct Knob {
  const char* name;
  int Tuning::*value;
  std::span<const int> allowed;  // the default among them
  bool hopper_alone;             // the portable path does not read it
  bool of_backward;
};
std::span<const Knob> knobs();

}  // namespace splash::gpu::entmax
