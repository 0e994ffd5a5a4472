#pragma once
// Why a kernel takes the time it takes, from what was counted of it and the ceilings measured beside it. Each
// finding says how much of the time would go if its cause did, at most; the findings are ranked by that.

#include <string>
#include <vector>

#include "analysis/roofline.h"

namespace splash::analysis {

enum class Cause {
  products,     // the tensor cores, or the float32 units, are busy
  l2,           // L2 delivers what it can
  dram,         // DRAM delivers what it can
  launches,     // starting kernels
  parallelism,  // fewer blocks than places: multiprocessors stand idle
  tail,         // the last wave of blocks is nearly empty
  inside,       // of the multiprocessor: issue slots, shared memory, or steps that wait for one another
};
const char* to_string(Cause cause);

struct Finding {
  Cause cause = Cause::inside;
  double gain = 1;       // time now / least time without this cause, all others as they are
  std::string sentence;  // with the numbers that carry it
};

struct Diagnosis {
  std::vector<Finding> findings;       // the verdict first; at least one
  std::vector<std::string> ruled_out;  // one clause each, with its number
};

// A level is a cause where it is busy for kBusy of the time; launches where they take kLaunches of it; the
// last wave, or a first one that is not filled, where less than kFilled of the places is. Where no level
// would be busy even with all places filled, the cause lies inside the multiprocessors: counts do not tell
// issue slots, shared memory and latency apart. Few resident warps are no cause: they are said beside this
// one.
constexpr double kBusy = 0.6, kLaunches = 0.3, kFilled = 0.8;

// Throws ReportError where the report lacks a ceiling that is needed.
Diagnosis diagnose(const KernelCase& kernel, const Multiprocessors& machine,
                   const std::vector<Ceiling>& ceilings);

}  // namespace splash::analysis
