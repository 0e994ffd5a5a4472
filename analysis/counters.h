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

  // Of imported kernels alone (profile_infos()).
  double dram_bytes = report::kMissing;      // read and written, where they are not told apart
  double dram_bandwidth = report::kMissing;  // bytes per second
  double clock_hz = report::kMissing, cycles = report::kMissing;  // of the multiprocessors
  double dram_share = report::kMissing, l2_share = report::kMissing, l1_share = report::kMissing;
  double shared_share = report::kMissing, issue_share = report::kMissing, fma_share = report::kMissing;
  double special_share = report::kMissing;  // of special functions: exponentials, roots, reciprocals
  double sm_share = report::kMissing;       // of the busiest unit of the multiprocessors
  double l1_hit_share = report::kMissing, l2_hit_share = report::kMissing;
  double float32_flops = report::kMissing, float32_per_cycle = report::kMissing;  // FLOP; FLOP per cycle
  double bank_conflicts = report::kMissing;
  double load_bytes_per_sector = report::kMissing, store_bytes_per_sector = report::kMissing;
  double theoretical_warps_share = report::kMissing;  // that registers, shared memory and blocks allow
  double multiprocessors = report::kMissing;
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
    double factor = 1;
  };
  // Alternatives, best first. The first one whose first metric is present is used; its missing terms count 0.
  std::vector<std::vector<Term>> sources;
};
const std::vector<CounterInfo>& counter_infos();

// What is read of imported kernels beyond counter_infos(): a profiler's own shares of peaks, and more. Both
// names of a metric are known, "dram__throughput.avg.pct_of_peak_sustained_elapsed" and "DRAM Throughput".
const std::vector<CounterInfo>& profile_infos();

// "counter: dram__bytes_read.sum, or 32 dram__sectors_read.sum (Nsight Compute, ...)"
std::string formula_of(const CounterInfo& info);

// Every counter of the launch that `infos` describe. Throws what NcuKernel::get() throws.
Counters counters_of(const NcuKernel& kernel, const std::vector<CounterInfo>& infos = counter_infos());

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

// Finds the profiled calls of each case. A profiled kernel belongs to a case if grid, block, name and, if
// both sides know them, registers and shared memory are equal. The name may differ if registers and shared
// memory are known and equal, because some variants declare another name than their function's. Several calls
// of one case are averaged. A case of several launches, or of unknown geometry (use.blocks 0), needs a table
// of whole calls and nothing else. If the report lists the launches, the table must have their order, and
// each launch gets its own time. Cases without a profiled kernel are left out. Throws InvalidArgument if no
// kernel belongs to any case, if a kernel belongs to several, or if a case has no counter of bytes or FLOPs.
std::vector<CountedCase> match_counters(const std::vector<NcuKernel>& kernels,
                                        const std::vector<KernelCase>& cases);

// Reads the simulated columns, if the report has them, into the cases.
void add_simulated(const report::Report& report, std::vector<CountedCase>& cases);

// write_counters puts the counters into columns labelled counter; read_counters reads them back. A case
// without counters has an empty function.
void write_counters(report::Report& report, const std::vector<CountedCase>& cases);
std::vector<CountedCase> read_counters(const report::Report& report, const std::vector<KernelCase>& cases);

// One cause of the difference counter - counted.
struct Part {
  const char* cause;
  double amount;  // bytes or FLOPs; negative if they were saved
};

// One level: what the declaration counts and what the hardware counted.
struct LevelCounts {
  Level level = Level::products;
  double counted = 0, counter = report::kMissing;
  double simulated = report::kMissing;  // bytes, of a first call
  double padding = 0;                   // part of `counted` beyond the useful work; known for products alone
  std::vector<Part> parts{};            // their sum is counter - counted; the last is "unexplained"
  bool close() const;                   // counter within kClose of counted
  bool simulated_close() const;         // counter within kClose of simulated
};
constexpr double kClose = 0.15;

// Compares products, L2 and DRAM, as far as they were counted. Only known causes are attributed; the rest is
// "unexplained".
//
// Products are the tensor cores' FLOPs. The float32 units are not compared, because they do other work too.
//
// L2. "local memory": loads of spilled registers that missed L1, which no declaration counts. "written beyond
// the result": writes - result, if the declaration counts no DRAM bytes but inputs and result.
//
// DRAM. A declaration counts one sum of bytes. It includes the result, written once, and the inputs, read
// once: inputs = min(q + k + v, sum - result). The rest (a workspace, repeated reads) may be reads or writes.
//   "refetched tiles"   read - inputs - rest, if positive, but at most what loads missed in L2
//   "inputs not read"   read - inputs, if negative: L2 held them, or no block needed them
//   "write-backs"       written - result - rest, if positive
//   "left in L2"        written - result, if negative
std::vector<LevelCounts> compare_levels(const CountedCase& counted);

}  // namespace splash::analysis
