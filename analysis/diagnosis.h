#pragma once
// Why a kernel takes the time it takes, from what was counted of it, the ceilings measured beside it, and the
// other cases of its report. Each finding says how much of the time would go if its cause did, at most; the
// findings are ranked by that: busy levels, which bound all else, before gains that were measured, and these
// before gains that are at most so.

#include <string>
#include <vector>

#include "analysis/roofline.h"

namespace splash::analysis {

enum class Cause {
  products,       // the tensor cores, or the float32 units, are busy
  exponentials,   // the special function units are busy
  l2,             // L2 delivers what it can
  dram,           // DRAM delivers what it can
  shared_memory,  // passes data in most cycles
  issue_slots,    // warps issue in most cycles
  launches,       // starting kernels
  parallelism,    // too few blocks: multiprocessors stand idle, or hold too few to hide latency
  tail,           // the last wave of blocks is nearly empty
  latency,        // nothing is busy where blocks are resident: steps wait for one another
  inside,         // of the multiprocessor: issue slots, shared memory or latency, not told apart
};
const char* to_string(Cause cause);

struct Finding {
  Cause cause = Cause::inside;
  double gain = 1;        // time now / least time without this cause, all others as they are
  std::string sentence;   // with the numbers that carry it
  bool measured = false;  // the gain was seen in another case; else it is what there is at most
};

struct Diagnosis {
  std::vector<Finding> findings;       // the verdict first; at least one
  std::vector<std::string> ruled_out;  // one clause each, with its number
  std::vector<std::string> not_known;  // what no number tells of
};

// A level is a cause where it is busy for kBusy of the time; launches where they take kLaunches of it; a tail
// where less than kFilled of the places is filled over all waves.
//
// A level of memory of which more than kOver of what the time allows is counted, and no counter saw it, is no
// verdict: the cache above it serves a part, nobody knows which, and it is ranked nowhere. Where counters saw
// it, and for what no cache serves, that much says that the ceiling is wrong or was measured at another
// clock.
//
// Too little parallelism: less than kFilled of one wave of blocks, and either the same kernel with more
// blocks, in the same report, does kScales times the work a second (the gain is then measured), or blocks for
// less than kFilled of the multiprocessors. Few resident warps alone are no cause: they are said beside one.
//
// Where no level would be busy even without idle multiprocessors, the cause lies inside them. Counters tell
// of issue slots and shared memory. Without counters the same kernel with other numbers of blocks does: where
// the time of a wave grows with its blocks, something inside is busy; where it does not, it is latency.
constexpr double kBusy = 0.6, kLaunches = 0.3, kFilled = 0.8, kScales = 1.25;

// `others`: cases of the same report. Throws ReportError where the report lacks a ceiling that is needed.
Diagnosis diagnose(const KernelCase& kernel, const Multiprocessors& machine,
                   const std::vector<report::Ceiling>& ceilings, const std::vector<KernelCase>& others = {});

// Into the report's columns `verdict` and `diagnosis`, and, of the model (what_if.h), `time_predicted` with
// `time_predicted_low` and `time_predicted_high`: what a case's time is from cases of its kernel on other
// problems. Throws as diagnose() and kernel_cases().
void write_diagnoses(report::Report& report, const Multiprocessors& machine);

}  // namespace splash::analysis
