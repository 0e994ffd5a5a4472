#pragma once
// The units of a GPU that a kernel may keep busy, and how busy it keeps each.

#include <string>
#include <vector>

#include "analysis/diagnosis.h"

namespace splash::analysis {

// A resource, and the share of the time in which it is busy; NaN: not known.
struct Resource {
  Cause cause = Cause::products;
  std::string name{};
  double share = 0;
  bool seen = false;            // by a profiler's counters
  const char* above = nullptr;  // the cache above this level, which may serve a part of the counted bytes
  std::string of{};             // what the share is of: "the measured ceiling"
  bool profiled = false;        // of a profiled kernel

  // More bytes are counted than this level can have delivered, so the cache above served some of them.
  bool served_above() const { return above != nullptr && !seen && share > kOver; }
  bool impossible() const { return profiled && (share > kOver || share < 0); }
  bool known() const { return share == share && !served_above() && !impossible(); }
};

// Throws ReportError if the report lacks a ceiling that is needed.
std::vector<Resource> resources_of(const KernelCase& kernel, const Multiprocessors& machine,
                                   const std::vector<report::Ceiling>& ceilings);

}  // namespace splash::analysis
