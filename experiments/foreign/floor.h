#pragma once
// The time below which no call of a declared kernel is believed.

#include <string>
#include <vector>

#include "experiments/foreign/declaration.h"
#include "report/report.h"

namespace splash::experiments {

// The least time of a call: its declared FLOPs and bytes at the data sheet's rates, or else at measured ones
// and a twentieth more (of a processor twice, whose ceilings vary). Bytes of outputs that the last-level
// cache can hold need not have left it. With a warm cache, arrays that fit into it give no floor but that of
// L2.
struct Floor {
  double seconds = report::kMissing;
  std::string of;
};
Floor floor_of(const ForeignKernel& kernel, const std::vector<report::Ceiling>& ceilings, bool cold);

}  // namespace splash::experiments
