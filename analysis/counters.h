#pragma once
// Compares Nsight Compute's counters with the bytes and FLOPs that a kernel's declaration counts, and
// explains the difference as far as it is known.

#include <optional>
#include <string>
#include <vector>

#include "analysis/cache/simulated.h"
#include "analysis/ncu_csv.h"
#include "analysis/roofline.h"

namespace splash::analysis {

// Counters of one call, summed over its kernels; the two shares are those of its largest kernel. NaN: the
// profiler did not deliver the counter.
struct Counters {
  double dram_read_bytes = report::kMissing, dram_write_bytes = report::kMissing;
  double l2_bytes = report::kMissing;            // asked of L2 by the multiprocessors
  double l2_write_bytes = report::kMissing;      // of these, written
  double l2_read_miss_bytes = report::kMissing;  // of these, read and not found
  double l1_bytes = report::kMissing;
  double local_read_bytes = report::kMissing;   // of local memory, not found in L1: spilled registers
  double shared_wavefronts = report::kMissing;  // cycles in which shared memory passes up to 128 bytes
  double tensor_flops = report::kMissing;
  double instructions = report::kMissing;  // of warps
  double seconds = report::kMissing;
  double tensor_share = report::kMissing;  // of the time that tensor cores are busy
  double warps_share = report::kMissing;   // resident warps / the most
};

// One counter: its column in a report, and the metrics that it is the sum of.
struct CounterInfo {
  double Counters::*member;
  const char* column;  // "dram_read_bytes_counter"
  const char* units;
  const char* long_name;
  bool additive;  // over the kernels of a call
  struct Term {
    const char* metric = "";
    Quantity quantity = Quantity::count;  // sectors count as the 32 bytes that they are
    double sign = 1;
  };
  // Alternatives, best first. The first one whose first metric is present is used; its missing terms count 0.
  std::vector<std::vector<Term>> sources;
};
const std::vector<CounterInfo>& counter_infos();

// Every metric that match_counters() looks at, for ncu --metrics.
std::vector<std::string> metrics_to_collect();

// A case whose kernels a profiler saw.
struct CountedCase {
  KernelCase kernel;
  std::string function;  // the largest kernel, as the profiler names it; empty where no counters are known
  Counters counters;
  std::optional<SimulatedCase> simulated{};
  std::vector<double>
      launch_seconds{};  // of each kernel of a call of several, in order of launch; else empty
};

// Finds the profiled calls of each case. A profiled kernel belongs to a case if grid, block, name and, where
// both sides know them, registers and shared memory are equal. The name may differ if registers and shared
// memory are known and equal, for some variants declare another name than the function's. Several calls of
// one case are averaged. A case of several launches needs a table of whole calls and nothing else; if the
// report lists the launches, the table must have their order, and each launch gets its own time. Cases
// without a profiled kernel are left out. Throws InvalidArgument where no kernel belongs to any case, where
// one belongs to several, and where a case has no counter of bytes or FLOPs.
std::vector<CountedCase> match_counters(const std::vector<NcuKernel>& kernels,
                                        const std::vector<KernelCase>& cases);

// Reads the simulated columns into the cases, where the report has them.
void add_simulated(const report::Report& report, std::vector<CountedCase>& cases);

// Write the counters into columns labelled counter, and read them back. A case without counters has an empty
// function.
void write_counters(report::Report& report, const std::vector<CountedCase>& cases);
std::vector<CountedCase> read_counters(const report::Report& report, const std::vector<KernelCase>& cases);

// One cause of the difference counter - counted.
struct Part {
  const char* cause;
  double amount;  // bytes or FLOPs, negative for what was spared
};

// One level: what the declaration counts beside what the hardware saw.
struct LevelCounts {
  Level level = Level::products;
  double counted = 0, counter = report::kMissing;
  double simulated = report::kMissing;  // bytes, of a first call
  double padding = 0;            // of `counted`, executed beyond the useful work; known of products alone
  std::vector<Part> parts{};     // their sum is counter - counted; the last is "unexplained"
  bool close() const;            // counter within kClose of counted
  bool simulated_close() const;  // counter within kClose of simulated
};
constexpr double kClose = 0.15;

// Products, L2, DRAM. Only what is known is attributed, the rest is "unexplained".
//
// Products are the tensor cores' FLOPs; float32 units are not compared, for other work runs on them too.
//
// L2. "local memory": loads of spilled registers that missed L1, which no declaration counts. "written beyond
// the result": writes - result, where the declaration counts no DRAM bytes but inputs and result.
//
// DRAM. A declaration counts one sum of bytes. The result in it is written once and the inputs are read:
// inputs = min(q + k + v, sum - result). The rest (a workspace, repeated reads) may be reads or writes.
//   "refetched tiles"   read - inputs - rest, where positive, and no more than loads missed in L2
//   "inputs not read"   read - inputs, where negative: L2 held them, or no block needed them
//   "write-backs"       written - result - rest, where positive
//   "left in L2"        written - result, where negative
std::vector<LevelCounts> compare_levels(const CountedCase& counted);

}  // namespace splash::analysis
