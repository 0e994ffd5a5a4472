#pragma once
// The kernels of a report against the machine's ceilings: the least time that each level (products, L2, DRAM)
// needs for the kernel's FLOPs and bytes. The kernels' declarations count these, not a profiler.

#include <limits>
#include <string>
#include <vector>

#include "analysis/occupancy.h"
#include "analysis/warp_stalls.h"
#include "core/attention_spec.h"
#include "core/dtype.h"
#include "report/report.h"

namespace splash::analysis {

// One of several kernels that a call starts (launches.h).
struct Launch {
  std::string kernel;                                                // as declared
  KernelUse use{};                                                   // registers 0: not known
  double flops = 0, l2_bytes = 0, dram_bytes = 0, exponentials = 0;  // counted by its own trace
  double seen_seconds = std::numeric_limits<double>::quiet_NaN();    // by a profiler
  double seconds = std::numeric_limits<double>::quiet_NaN();  // of the case's time, once it was shared out
  std::string unit{};  // dtype of the products' ceiling; "": that of the case
};

// How busy a profiler saw the units of the GPU, as shares of their peaks. NaN: it did not tell.
struct SeenShares {
  double float32 = std::numeric_limits<double>::quiet_NaN(),
         tensor = std::numeric_limits<double>::quiet_NaN();
  double special = std::numeric_limits<double>::quiet_NaN();  // special function units
  double l1 = std::numeric_limits<double>::quiet_NaN();       // L1 and shared memory together
  double l2 = std::numeric_limits<double>::quiet_NaN(), dram = std::numeric_limits<double>::quiet_NaN();
  double shared = std::numeric_limits<double>::quiet_NaN(), issue = std::numeric_limits<double>::quiet_NaN();
  double multiprocessor = std::numeric_limits<double>::quiet_NaN();  // the busiest unit of them
};

// One timed kernel variant of a report of kind gpu-attention, or a kernel that `splash import` took from a
// profiler's table (profiled_kernel.h).
struct KernelCase {
  int64_t row = 0;  // in the report's results
  std::string case_id, implementation;
  std::string problem;  // "bfloat16, 1 x 16 heads, 16384 x 16384, d 64, causal", and all else that is unusual
  std::string setting;  // the same without batch, heads and lengths
  AttentionShape shape{};
  Dtype dtype = Dtype::f32;
  bool causal = false;
  int64_t window = 0;              // of core/mask.h
  int64_t tile_q = 1, tile_k = 1;  // queries and keys that a block works on at a time
  int stages = 1;                  // tiles of keys and values in flight
  double seconds = 0;              // median of a call
  double seconds_low = std::numeric_limits<double>::quiet_NaN();  // of its 95 % interval; NaN: not recorded
  double seconds_high = std::numeric_limits<double>::quiet_NaN();
  double flops = 0;                                           // of the products as they run, padding included
  double useful_flops = 0;                                    // of the visible and selected pairs alone
  double support = std::numeric_limits<double>::quiet_NaN();  // keys with weight per row; NaN: not recorded
  double dram_bytes = 0, l2_bytes = 0;
  double exponentials = std::numeric_limits<double>::quiet_NaN();  // NaN: not counted
  int instruction_q = 0;  // rows of the instruction that multiplies; 0: not known
  std::string unit;       // dtype of the products' ceiling: "float32" (FMA), "tf32", "float16", "bfloat16"
  double input_bytes = 0, output_bytes = 0;  // q, k and v; the result
  // One kernel of the call, as declared, and its resources. As recorded it is the one with most threads;
  // after described_kernels() (launches.h) it is the one that takes longest.
  std::string kernel;
  KernelUse use{};
  int launches = 1;
  std::vector<Launch> all{};   // if there are several, in order of launch; empty: not known
  int longest = -1;            // index into `all`; -1: not known
  bool launches_seen = false;  // a profiler measured the launches' times; otherwise estimated
  bool replayed = false;       // timed as a graph of calls; otherwise as single calls
  int resident_blocks = 0;     // per multiprocessor, of the kernel with most threads, as CUDA reported
  std::string idea;            // as declared

  // These are NaN if the report does not tell.
  double clock_hz = std::numeric_limits<double>::quiet_NaN();        // of the multiprocessors, while it ran
  double instructions = std::numeric_limits<double>::quiet_NaN();    // of warps, by counters
  double shared_traffic = std::numeric_limits<double>::quiet_NaN();  // bytes of shared memory, by counters
  double l2_traffic = std::numeric_limits<double>::quiet_NaN();      // bytes asked of L2, by counters
  double dram_traffic = std::numeric_limits<double>::quiet_NaN();    // of DRAM, with L2 empty at first

  // Of a profiled kernel of any kind: shape, dtype and tiles mean nothing, counts are the profiler's, and the
  // time leaves out launches.
  bool profiled = false;
  bool benched = false;  // and `splash bench` timed it: counts are as declared, the time includes launches
  bool placed = true;    // false: blocks and threads of the benched kernel are not known
  SeenShares seen{};
  WarpStalls stalls{};
  double bank_conflicts = std::numeric_limits<double>::quiet_NaN();  // share of the passes of shared memory
  double load_bytes = std::numeric_limits<double>::quiet_NaN();  // used of each 32-byte sector that is loaded
  double store_bytes = std::numeric_limits<double>::quiet_NaN();
  std::string warning{};  // what cannot be in its table
};

// The kernel with counted bytes replaced by the profiler's, if the report has them. The two differ because L1
// serves a part of what blocks ask for, and DRAM delivers again what L2 did not hold.
KernelCase as_counters_saw(KernelCase kernel);

// Sets input_bytes and output_bytes, which follow from shape and dtype.
void count_tensors(KernelCase& kernel);

// Rows, and keys, of the instruction that multiplies in this unit; for kernels that do not declare them. 1
// for an FMA, 16 for a tensor core.
int instruction_rows(std::string_view unit);

// The unit of a case that ran on the CPU begins with this: "cpu float32".
constexpr const char* kCpuUnit = "cpu ";

// Whether both are of one ladder and at most one rung apart: "wmma/3-tile-64" is rung 3 of wmma.
bool are_neighbouring_rungs(const KernelCase& a, const KernelCase& b);

// Which calls to take from a report: forwards alone, or also forwards with their backward.
enum class Calls { forward, all };

// The cases that were run, in the report's order, without peers, which have no counts. Models take forwards
// alone, because a declaration does not tell the work of a call with backward. Throws ReportError if the
// report lacks the columns.
std::vector<KernelCase> kernel_cases(const report::Report& report, Calls calls = Calls::forward);

constexpr double kWavefrontBytes = 128;  // bytes that shared memory passes in one cycle

// A kernel that exceeds a ceiling by more than this factor does so by no measuring error: the count or the
// ceiling is wrong.
constexpr double kOver = 1.05;

// Why a measured ceiling is doubtful: "the ceiling 'tensor' in bfloat16 was measured at 139 % of the data
// sheet". Empty if it is not, or if no data sheet tells.
std::string why_questioned(const report::Ceiling& ceiling);

// What the ceiling was measured at; where it was not measured, the data sheet's figure; NaN if there is
// neither.
double rate_of(const report::Ceiling& ceiling);

enum class Level { products, l2, dram };
const char* to_string(Level level);  // "products", "L2", "DRAM"

// Seconds at the ceilings. Of profiled kernels a floor may be NaN: not counted, or no ceiling is known.
struct Floors {
  double products = 0, l2 = 0, dram = 0;
  double highest() const;  // of those that are known
  double sum() const;      // of those that are known
  Level level() const;     // the highest
  // Drops the levels of memory whose counted bytes take more than kOver times `seconds`, because a cache
  // above serves a part of them.
  Floors within(double seconds) const;
};

// If launches multiply on different units, their times add up. Throws ReportError if the report lacks a
// ceiling that the case needs.
Floors floors_of(const KernelCase& kernel, const std::vector<report::Ceiling>& ceilings);

// Seconds that the shared-memory traffic takes at its measured ceiling; NaN if no counter measured the
// traffic.
double shared_seconds(const KernelCase& kernel, const std::vector<report::Ceiling>& ceilings);

// Seconds of the exponentials at their measured ceiling. A report without that ceiling falls back to the
// vendor's rate at the clock of the case. NaN where exponentials are not counted or no rate is known.
double exponential_seconds(const KernelCase& kernel, const Multiprocessors& machine,
                           const std::vector<report::Ceiling>& ceilings);
bool has_ceiling(const std::vector<report::Ceiling>& ceilings, const std::string& name);

// Seconds that it takes to start a call's kernels: one single launch plus the following ones, or graph nodes.
double launch_seconds(const KernelCase& kernel, const std::vector<report::Ceiling>& ceilings);

// The seconds of a call that `launch` of them do not explain. At least a hundredth of the call: if launches
// take all of the time, the rest cannot be told.
double seconds_behind_launch(const KernelCase& kernel, double launch);

}  // namespace splash::analysis
