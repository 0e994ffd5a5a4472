#include "experiments/kinds/support/counted_cpu.h"

#include <algorithm>

#include "analysis/cache/simulate.h"
#include "analysis/cpu_roofline.h"
#include "core/error.h"
#include "core/touched_bytes.h"
#include "experiments/runner/ceilings.h"

namespace splash::experiments {
namespace {

using namespace analysis;

constexpr double kMostSimulatedCpuLines = 1e8;  // some three seconds; cases with more lines are not simulated
constexpr const char* kUnit = "cpu float32";

struct CpuWork {
  double flops = 0, l2_bytes = 0, dram_bytes = 0;
};

CpuWork counted(const std::vector<KernelTrace>& parts, int64_t last_cache) {
  CpuWork work;
  TouchedBytes touched;
  BlockTrace trace;
  for (const KernelTrace& part : parts) {
    for (int64_t piece = 0; piece < part.blocks; ++piece) {
      trace.clear();
      part.run(piece, trace);
      work.flops += trace.flops();
      touched.add(trace);
      for (const BlockTrace::Range& range : trace.ranges())
        work.l2_bytes += static_cast<double>(range.bytes * range.rows);
    }
  }
  const int64_t workspace = touched.of(Operand::workspace);
  work.dram_bytes = static_cast<double>(touched.all() - workspace);
  if (workspace > last_cache) work.dram_bytes += 2 * static_cast<double>(workspace);
  return work;
}

void simulate_caches(const std::vector<KernelTrace>& parts, int64_t threads, const cpu_ref::Caches& caches,
                     std::map<std::string, double>& numbers) {
  constexpr int64_t kLeastCache = int64_t{kLineBytes} * Cache::kWays;
  if (caches.l2 < kLeastCache || caches.last < kLeastCache) return;
  std::vector<KernelRun> runs;
  WorkingSet largest;
  for (const KernelTrace& part : parts) {
    runs.push_back({.trace = part, .at_once = threads, .l1_bytes = caches.l2});
    const WorkingSet set = working_set(runs.back());
    if (set.wave > largest.wave) largest = set;
  }
  const CallTraffic traffic = simulate(runs, static_cast<int>(threads), {.bytes = caches.last});
  numbers["l2_hit_bytes_simulated"] = static_cast<double>(traffic.l1_hits);
  numbers["last_cache_bytes_simulated"] = static_cast<double>(traffic.memory.asked);
  numbers["dram_read_bytes_simulated"] = static_cast<double>(traffic.memory.dram_read);
  numbers["dram_write_bytes_simulated"] = static_cast<double>(traffic.memory.dram_written);
  numbers["block_working_set"] = static_cast<double>(largest.block);
  numbers["wave_working_set"] = static_cast<double>(largest.wave);
}

report::ColumnInfo column(const char* name, const char* units, const char* long_name, const char* formula,
                          const std::string& missing_reason) {
  return {.name = name,
          .units = units,
          .long_name = long_name,
          .formula = formula,
          .reproducible = false,  // differs by processor: vector width, caches
          .missing_reason = missing_reason};
}

}  // namespace

std::vector<report::ColumnInfo> counted_cpu_columns(const std::string& missing) {
  const std::string not_simulated =
      missing +
      "; or the system does not tell its caches' sizes, or there are more accesses than are simulated";
  constexpr const char* kSimulated =
      "simulated: the implementation's accesses, through an L2 a thread and the last cache, empty at first";
  report::ColumnInfo unit =
      column("math_unit", "text", "unit whose rate bounds the products", "declared", missing);
  unit.is_text = true;
  return {
      column("useful_flops", "FLOP", "work on the pairs that count",
             "4 d a visible pair; of backward 8 d a pair of the support", missing),
      column("executed_flops", "FLOP", "work of the products as they run",
             "the implementation's trace: padding of tiles, pairs that screening drops and scores that "
             "backward computes again included; the support is that of the run",
             missing),
      column("executed_rate", "FLOP/s", "work of the products over the time", "executed_flops / time_median",
             missing),
      column(
          "dram_bytes_counted", "bytes", "bytes that DRAM must deliver",
          "counted by the implementation's trace: each byte of the tensors that is touched, once; of packed "
          "keys and the stored support, where the last cache does not hold them, twice",
          missing),
      column("l2_bytes_counted", "bytes", "bytes that all threads ask of L2 and what lies behind",
             "counted by the implementation's trace, as if L1 held a panel of keys and nothing else",
             missing),
      column("arithmetic_intensity", "FLOP/byte", "work a byte of DRAM",
             "executed_flops / dram_bytes_counted", missing),
      column("l2_hit_bytes_simulated", "bytes", "bytes asked of L2 and held", kSimulated, not_simulated),
      column("last_cache_bytes_simulated", "bytes", "bytes asked of the last cache", kSimulated,
             not_simulated),
      column("dram_read_bytes_simulated", "bytes", "bytes read from DRAM", kSimulated, not_simulated),
      column("dram_write_bytes_simulated", "bytes", "bytes written to DRAM while the call runs", kSimulated,
             not_simulated),
      column("block_working_set", "bytes", "bytes that a thread's piece of work touches, each once",
             "the most of the pieces that are under way at first", not_simulated),
      column("wave_working_set", "bytes", "bytes that the pieces of all threads touch, each once",
             "of the part of the call where that is most", not_simulated),
      unit,
      column("floor_time", "s", "least time of the work as executed on this processor",
             "max of executed_flops / measured rate, l2_bytes_counted / measured L2 bandwidth, "
             "dram_bytes_counted / measured DRAM bandwidth, of all threads; bytes that take more than 1.05 "
             "time_median are left out: a cache above serves a part of them",
             missing),
      column("roof_share", "1", "share of the roof", "floor_time / time_median", missing),
  };
}

void add_cpu_counts(const std::vector<KernelTrace>& parts, double useful_flops, int64_t threads,
                    const cpu_ref::Caches& caches, CaseResult& result) {
  const CpuWork work = counted(parts, caches.last);
  auto& numbers = result.numbers;
  numbers["useful_flops"] = useful_flops;
  numbers["executed_flops"] = work.flops;
  numbers["executed_rate"] = work.flops / numbers.at("time_median");
  numbers["dram_bytes_counted"] = work.dram_bytes;
  numbers["l2_bytes_counted"] = work.l2_bytes;
  numbers["arithmetic_intensity"] = work.flops / work.dram_bytes;
  result.texts["math_unit"] = kUnit;
  if (work.l2_bytes / kLineBytes <= kMostSimulatedCpuLines) simulate_caches(parts, threads, caches, numbers);
}

void add_cpu_roof(CaseResult& result) {
  auto& numbers = result.numbers;
  if (!numbers.contains("executed_flops")) return;
  CpuCase cpu;
  cpu.dtype = "float32";
  cpu.flops = numbers.at("executed_flops");
  cpu.l2_bytes = numbers.at("l2_bytes_counted");
  cpu.dram_bytes = numbers.at("dram_bytes_counted");
  const double seconds = numbers.at("time_median");
  numbers["floor_time"] = floors_of(cpu, cpu_ceilings()).within(seconds).highest();
  numbers["roof_share"] = numbers["floor_time"] / seconds;
}

}  // namespace splash::experiments
