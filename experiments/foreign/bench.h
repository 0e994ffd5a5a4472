#pragma once
// Times a kernel of others that is not trusted. This process owns inputs, poison, checks, the clock that
// bears out the kernel's times, and the floor below which no time is believed
// (docs/decisions/0058-a-kernel-of-others-is-judged-from-outside.md).

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "analysis/roofline.h"
#include "experiments/foreign/declaration.h"
#include "experiments/foreign/ptx_counting.h"
#include "experiments/foreign/worker_process.h"

namespace splash::experiments {

struct BenchOptions {
  std::map<std::string, int64_t> sizes;
  int64_t samples = 40;
  bool cold = true;  // the last-level cache is flushed before each timed call; otherwise the arrays are read
  double seconds = 10;     // no new round of calls begins after that; one is always run
  double timeout = 120;    // seconds for an answer
  int64_t checked = 4096;  // elements of an output that are checked after each call
  std::function<CountingPtx(int)>
      counting;                 // the kernel's PTX for a compute capability, if it is to be counted
  bool time_reference = false;  // also, in the process of the reference, which then has a call of its own
  uint64_t seed = 0;            // below 2^53, so that a report holds it
  int64_t threads = 1;          // of a kernel on the CPU
};

// What a call does, counted in a copy of its PTX; NaN: not counted. Instructions are those of the PTX, of
// warps.
struct CountedWork {
  double shared_passes = report::kMissing, bank_conflicts = report::kMissing;
  double load_sectors = report::kMissing, load_bytes = report::kMissing;
  double store_sectors = report::kMissing, store_bytes = report::kMissing;
  double instructions = report::kMissing, special = report::kMissing;
};

// What was found against a kernel. A case with findings has no time.
enum class Against { wrong, poisoned, blind, contradiction, floor, idle_work, odd_times };
struct BenchFinding {
  Against against;
  std::string sentence;
};
const char* to_string(Against against);  // "wrong", "not written", "floor", ...

struct BenchResult {
  ForeignKernel kernel;
  std::vector<double> seconds;                // of each timed call, as the kernel's process says
  double seconds_outside = report::kMissing;  // of a call, by this process's clock, launch included
  double floor_seconds = report::kMissing;    // no call can be shorter
  std::string floor_of;                       // "DRAM at the data sheet's 3.35e12 bytes/s"
  std::vector<analysis::Launch> launches;
  double reference_seconds = report::kMissing;  // of a call of the reference, if that was asked
  double clock_hz = report::kMissing;
  double cores = report::kMissing;  // of the processor that a call keeps busy
  CountedWork counted;
  std::string not_counted{};  // why nothing was counted, where that was asked
  int64_t calls_checked = 0, elements_checked = 0;
  double max_absolute = 0, max_relative = 0;
  std::vector<BenchFinding> findings;
};

// `reference` is a process of the same declaration that never runs the kernel. `ceilings_of` gets the
// device's name. Throws Error or InvalidArgument if one of the two fails.
BenchResult bench_kernel(WorkerProcess& worker, WorkerProcess& reference,
                         const std::function<std::vector<report::Ceiling>(const std::string&)>& ceilings_of,
                         const BenchOptions& options);

}  // namespace splash::experiments
