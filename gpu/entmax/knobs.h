#pragma once
// What each knob of a Tuning may be set to. Apart from tuning.h, for nvcc warns of pointers to members.

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
