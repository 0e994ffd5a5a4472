#pragma once
// Explains a kernel's time from its counts, the ceilings measured beside it and the other cases of its
// report. Each finding has a gain: the largest speed-up that removing its cause could bring. Busy levels rank
// first, because they bound everything else. Then come gains that another case measured, then gains that are
// only upper bounds. Within each group the largest gain comes first.

#include <string>
#include <vector>

#include "analysis/roofline.h"

namespace splash::analysis {

enum class Cause {
  products,       // the tensor cores, or the float32 units, are busy
  exponentials,   // the special function units are busy
  l1,             // L1, which shared memory is a part of, delivers what it can; of profiled kernels alone
  l2,             // L2 delivers what it can
  dram,           // DRAM delivers what it can
  shared_memory,  // shared memory passes data in most cycles
  pipes,          // a unit of the multiprocessors is busy; of profiled kernels alone
  issue_slots,    // warps issue instructions in most cycles
  launches,       // starting kernels takes the time
  parallelism,    // too few blocks: multiprocessors stand idle, or hold too few to hide latency
  tail,           // the last wave of blocks is nearly empty
  latency,        // no resource is busy where blocks are resident: steps wait for one another
  inside,         // inside the multiprocessor: issue slots, shared memory or latency, not told apart
};
const char* to_string(Cause cause);

struct Finding {
  Cause cause = Cause::inside;
  double gain = 1;        // time now / least time without this cause, all others as they are
  std::string sentence;   // includes the numbers that support it
  bool measured = false;  // another case showed the gain; otherwise it is an upper bound
};

struct Diagnosis {
  std::vector<Finding> findings;       // the verdict first; at least one
  std::vector<std::string> ruled_out;  // one clause each, with its number
  std::vector<std::string> not_known;  // what no number tells of
};

// A level is a cause if it is busy for kBusy of the time. Launches are a cause if they take kLaunches of the
// time. A tail is a cause if less than kFilled of the block slots are filled over all waves.
//
// The counted bytes of a memory level may exceed what the time allows by more than kOver. If no counter
// confirms them, the cache above serves an unknown part, and the level is neither a verdict nor ranked. If
// counters confirm them, or there is no cache above, the ceiling is wrong or was measured at another clock.
//
// Parallelism is too low if the blocks fill less than kFilled of one wave, and either the same kernel with
// more blocks in the same report does kScales times the work per second (a measured gain), or the blocks
// occupy less than kFilled of the multiprocessors. Few resident warps alone are no cause; another cause's
// sentence names them.
//
// If no level would be busy even without idle multiprocessors, the cause lies inside them. Counters tell
// issue slots from shared memory. Without counters, the same kernel with another number of blocks tells:
// something inside is busy if the time of a wave grows with its blocks, and latency is the cause if it does
// not.
//
// Of profiled kernels a profiler's own share of a peak comes before counts over ceilings, what cannot be
// (over kOver, or below 0) is not known, and the reasons for which warps wait tell latency from a busy unit.
constexpr double kBusy = 0.6, kLaunches = 0.3, kFilled = 0.8, kScales = 1.25;

// `others`: cases of the same report. Throws ReportError if the report lacks a ceiling that is needed.
Diagnosis diagnose(const KernelCase& kernel, const Multiprocessors& machine,
                   const std::vector<report::Ceiling>& ceilings, const std::vector<KernelCase>& others = {});

// Fills the report's columns `verdict` and `diagnosis`. Also fills `time_predicted`, `time_predicted_low` and
// `time_predicted_high`: each case's time as the model (what_if.h) predicts it from cases of its kernel on
// other problems. Throws what diagnose() and kernel_cases() throw.
void write_diagnoses(report::Report& report, const Multiprocessors& machine);

}  // namespace splash::analysis
