#include "experiments/foreign/bench_report.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "analysis/profile_import.h"
#include "analysis/profiled_kernel.h"
#include "analysis/samples.h"
#include "experiments/runner/project_root.h"

namespace splash::experiments {
namespace {

using analysis::Launch;
using analysis::ProfiledCase;
using analysis::ProfiledGpu;

// The launch of a call that has most threads.
const Launch* largest(const std::vector<Launch>& launches) {
  const auto found = std::max_element(launches.begin(), launches.end(), [](const Launch& a, const Launch& b) {
    return a.use.blocks * a.use.threads < b.use.blocks * b.use.threads;
  });
  return found == launches.end() ? nullptr : &*found;
}

std::string warning_of(const BenchResult& result) {
  std::vector<std::string> sentences;
  for (const BenchFinding& finding : result.findings) sentences.push_back(finding.sentence);
  if (sentences.empty()) return analysis::why_spoilt(result.seconds);
  return fmt::format("{}", fmt::join(sentences, "; "));
}

std::string problem_of(const BenchedCase& benched) {
  const std::string problem = benched.result.kernel.problem();
  return benched.workload.empty() ? problem : fmt::format("{}, {}", problem, benched.workload);
}

ProfiledCase profiled(const BenchedCase& benched, const BenchOptions& options) {
  const BenchResult& result = benched.result;
  const ForeignKernel& kernel = result.kernel;
  ProfiledCase made;
  made.name =
      fmt::format("{}, {}, {}", benched.implementation, problem_of(benched), options.cold ? "cold" : "warm");
  made.implementation = benched.implementation;
  if (const Launch* launch = largest(result.launches)) made.use = launch->use;
  if (kernel.on_cpu()) made.use = {.blocks = 1, .threads = static_cast<int>(options.threads)};
  made.launches = static_cast<int64_t>(result.launches.size());
  if (result.findings.empty() && !result.seconds.empty()) {
    made.seconds = result.seconds;
    made.least = *std::min_element(result.seconds.begin(), result.seconds.end());
    made.most = *std::max_element(result.seconds.begin(), result.seconds.end());
  }
  made.counters.clock_hz = result.clock_hz;
  if (!kernel.on_cpu()) made.counters.multiprocessors = kernel.multiprocessors;
  const CountedWork& counted = result.counted;
  made.counters.shared_wavefronts = counted.shared_passes;
  made.counters.bank_conflicts = counted.bank_conflicts;
  made.counters.instructions = counted.instructions;
  if (counted.load_sectors > 0)
    made.counters.load_bytes_per_sector = counted.load_bytes / counted.load_sectors;
  if (counted.store_sectors > 0)
    made.counters.store_bytes_per_sector = counted.store_bytes / counted.store_sectors;
  made.flops = kernel.flops;
  made.dram_bytes = kernel.bytes;
  made.unit = kernel.on_cpu() ? analysis::kCpuUnit + kernel.unit : kernel.unit;
  made.warning = warning_of(result);
  return made;
}

// Columns that say something else of a benched kernel than of a profiled one, or that only it has.
class Changes {
 public:
  Changes(report::Report& report, const std::vector<BenchedCase>& cases) : report_(report), cases_(cases) {}

  void retell(const char* name, const char* long_name, const std::string& formula, const char* missing) {
    report::ColumnInfo& info = report_.find(name)->info;
    info.long_name = long_name;
    info.formula = formula;
    info.missing_reason = missing;
  }
  template <class Value>
  void text(const char* name, const char* long_name, const char* formula, const Value& value_of,
            bool is_parameter = false) {
    const report::ColumnInfo info{.name = name,
                                  .units = "text",
                                  .long_name = long_name,
                                  .formula = formula,
                                  .is_text = true,
                                  .is_parameter = is_parameter,
                                  .reproducible = is_parameter,
                                  .missing_reason = "there is none"};
    report::Column& column = report::column_of(report_, info);
    column.info = info;
    for (std::size_t i = 0; i < cases_.size(); ++i) column.texts[i] = value_of(cases_[i]);
  }
  template <class Value>
  void number(const char* name, const char* units, const char* long_name, const char* formula,
              const Value& value_of) {
    report::Column& column = report::column_of(report_, {.name = name,
                                                         .units = units,
                                                         .long_name = long_name,
                                                         .formula = formula,
                                                         .reproducible = false,
                                                         .missing_reason = "not known"});
    for (std::size_t i = 0; i < cases_.size(); ++i)
      column.numbers[i] = static_cast<double>(value_of(cases_[i].result));
  }

 private:
  report::Report& report_;
  const std::vector<BenchedCase>& cases_;
};

void retell_times(Changes& changes, bool on_cpu) {
  const char* const refused = "the kernel was not believed: warning tells why";
  changes.retell(
      "time", "time of one call on new inputs",
      on_cpu ? "a monotonic clock around the call" : "between CUDA events, the call enqueued before",
      refused);
  changes.retell("time_median", "median time of a call", "median of time", refused);
  changes.retell("time_low", "lower end of the median's 95 % interval",
                 "order statistics of time, of 6 and more", refused);
  changes.retell("time_high", "upper end of the median's 95 % interval",
                 "order statistics of time, of 6 and more", refused);
  changes.retell("time_least", "least time of a call", "least of time", refused);
  changes.retell("time_most", "largest time of a call", "largest of time", refused);
  changes.number("time_outside", "s", "time of a call, launch included",
                 "by the clock of another process, without what no call takes; least of up to 5 trials",
                 [](const BenchResult& r) { return r.seconds_outside; });
  changes.number("time_floor", "s", "least time that a call can take",
                 "FLOPs and bytes over the rates of floor_of",
                 [](const BenchResult& r) { return r.floor_seconds; });
  changes.text("floor_of", "what bounds a call from below", "splash bench",
               [](const BenchedCase& c) { return c.result.floor_of; });
}

void add_checks(Changes& changes, const BenchOptions& options) {
  changes.number("calls_checked", "1", "calls whose outputs were checked", "all that were made",
                 [](const BenchResult& r) { return r.calls_checked; });
  changes.number("elements_checked", "1", "elements of outputs that were checked", "drawn after the calls",
                 [](const BenchResult& r) { return r.elements_checked; });
  changes.number("error_max", "1", "largest difference of an output from its reference",
                 "max |output - reference|", [](const BenchResult& r) { return r.max_absolute; });
  changes.number("relative_error_max", "1", "largest relative difference of an output from its reference",
                 "max |output - reference| / |reference|",
                 [](const BenchResult& r) { return r.max_relative; });
  changes.number("seed", "1", "seed of inputs, poison and checks", "drawn by the system, or as asked",
                 [&](const BenchResult&) { return options.seed; });
}

void add_counts(Changes& changes) {
  const char* const how = "counted by a copy of the kernel whose PTX was changed to count";
  const char* const missing = "not counted: no nvcc, no launch(), or data that moves in other ways";
  changes.retell("shared_wavefronts_counter", "passes through shared memory", how, missing);
  changes.retell("bank_conflicts_counter", "passes through shared memory that bank conflicts cost", how,
                 missing);
  changes.retell("instructions_counter", "instructions of warps, of the PTX", how, missing);
  changes.retell("load_bytes_per_sector_counter", "bytes used of each 32-byte sector that threads load", how,
                 missing);
  changes.retell("store_bytes_per_sector_counter",
                 "bytes written of each 32-byte sector that threads store to", how, missing);
  changes.number("special_counter", "1", "results of special functions", how,
                 [](const BenchResult& r) { return 32 * r.counted.special; });
  changes.number(
      "l1_bytes_counted", "bytes", "bytes of the sectors that threads ask for", how,
      [](const BenchResult& r) { return 32 * (r.counted.load_sectors + r.counted.store_sectors); });
}

}  // namespace

report::Report bench_report(const std::vector<BenchedCase>& cases, const BenchOptions& options,
                            std::vector<report::Ceiling> ceilings) {
  const ForeignKernel& first = cases.front().result.kernel;
  ProfiledGpu gpu;
  gpu.name = first.on_cpu() ? "" : first.device;
  gpu.compute_capability = first.compute_capability;
  if (!first.on_cpu())
    gpu.machine = analysis::find_machine(first.device, analysis::read_machines(machines_folder()));
  std::vector<ProfiledCase> made;
  for (const BenchedCase& benched : cases) made.push_back(profiled(benched, options));
  report::Report report = analysis::profiled_report(made, gpu, std::move(ceilings));
  Changes changes(report, cases);
  changes.text("experiment", "what the case is of", "bench: a kernel of others",
               [](const BenchedCase&) { return "bench"; });
  changes.text("method", "how the time was taken",
               "bench: by the kernel's process, borne out by the clock outside it",
               [](const BenchedCase&) { return analysis::kBenchMethod; });
  changes.text("problem", "sizes, or the arrays", "as declared", problem_of, true);
  changes.text("warning", "what was found against the kernel, or what spoils its times",
               "outputs, times and floor: splash bench",
               [](const BenchedCase& c) { return warning_of(c.result); });
  changes.text(
      "cache", "state of the last-level cache before a timed call",
      "cold: flushed; warm: the arrays were read",
      [&](const BenchedCase&) { return options.cold ? "cold" : "warm"; }, true);
  retell_times(changes, first.on_cpu());
  changes.retell("executed_flops", "FLOPs of a call", "as declared: those that its definition needs",
                 "not declared");
  changes.retell("dram_bytes_counted", "bytes that a call must move",
                 "as declared, or each array once, updates twice", "not declared");
  changes.number("launches", "1", "kernels of a call", "as launch() or a trace noted them; 0: not known",
                 [](const BenchResult& r) { return r.launches.size(); });
  add_checks(changes, options);
  if (!first.on_cpu()) add_counts(changes);
  if (first.on_cpu()) {
    changes.number("cores", "1", "cores that a call keeps busy",
                   "processor time of its process over time outside",
                   [](const BenchResult& r) { return r.cores; });
    changes.number("useful_flops", "FLOP", "FLOPs of a call", "as executed_flops",
                   [](const BenchResult& r) { return r.kernel.flops; });
    changes.number("l2_bytes_counted", "bytes", "bytes that a call must move", "as dram_bytes_counted",
                   [](const BenchResult& r) { return r.kernel.bytes; });
  }
  return report;
}

}  // namespace splash::experiments
