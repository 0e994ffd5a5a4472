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

ProfiledCase case_of(const BenchResult& result, const std::string& implementation, int64_t threads, bool cold) {
  const ForeignKernel& kernel = result.kernel;
  ProfiledCase made;
  made.name = fmt::format("{}, {}, {}", implementation, kernel.problem(), cold ? "cold" : "warm");
  made.implementation = implementation;
  if (const Launch* launch = largest(result.launches)) made.use = launch->use;
  if (kernel.on_cpu()) made.use = {.blocks = 1, .threads = static_cast<int>(threads)};
  made.launches = static_cast<int64_t>(result.launches.size());
  if (result.findings.empty() && !result.seconds.empty()) {
    made.seconds = result.seconds;
    made.least = *std::min_element(result.seconds.begin(), result.seconds.end());
    made.most = *std::max_element(result.seconds.begin(), result.seconds.end());
  }
  made.counters.clock_hz = result.clock_hz;
  if (!kernel.on_cpu()) made.counters.multiprocessors = kernel.multiprocessors;
  made.flops = kernel.flops;
  made.dram_bytes = kernel.bytes;
  made.unit = kernel.on_cpu() ? analysis::kCpuUnit + kernel.unit : kernel.unit;
  made.warning = warning_of(result);
  return made;
}

// Columns of the report that say something else of a benched kernel than of a profiled one.
class Changed {
 public:
  explicit Changed(report::Report& report) : report_(report) {}

  void retell(const char* name, const char* long_name, const std::string& formula, const char* missing) {
    report::ColumnInfo& info = report_.find(name)->info;
    info.long_name = long_name;
    info.formula = formula;
    info.missing_reason = missing;
  }
  void text(const char* name, const char* long_name, const char* formula, const std::string& value,
            bool is_parameter = false) {
    report::Column& column = report::column_of(report_, {.name = name,
                                                         .units = "text",
                                                         .long_name = long_name,
                                                         .formula = formula,
                                                         .is_text = true,
                                                         .is_parameter = is_parameter,
                                                         .reproducible = is_parameter,
                                                         .missing_reason = "there is none"});
    column.info.long_name = long_name;
    column.info.formula = formula;
    column.texts.front() = value;
  }
  void number(const char* name, const char* units, const char* long_name, const char* formula, double value) {
    report::column_of(report_, {.name = name,
                                .units = units,
                                .long_name = long_name,
                                .formula = formula,
                                .reproducible = false,
                                .missing_reason = "not known"})
        .numbers.front() = value;
  }

 private:
  report::Report& report_;
};

}  // namespace

report::Report bench_report(const BenchResult& result, const std::string& implementation, const BenchOptions& options,
                            std::vector<report::Ceiling> ceilings) {
  const ForeignKernel& kernel = result.kernel;
  ProfiledGpu gpu;
  gpu.name = kernel.on_cpu() ? "" : kernel.device;
  gpu.compute_capability = kernel.compute_capability;
  if (!kernel.on_cpu()) gpu.machine = analysis::find_machine(kernel.device, analysis::read_machines(machines_folder()));
  const std::vector<ProfiledCase> cases{case_of(result, implementation, options.threads, options.cold)};
  report::Report report = analysis::profiled_report(cases, gpu, std::move(ceilings));
  Changed changed(report);
  const char* const refused = "the kernel was not believed: warning tells why";
  changed.text("experiment", "what the case is of", "bench: a kernel of others", "bench");
  changed.text("method", "how the time was taken",
               "bench: by the kernel's process, borne out by the clock outside it", analysis::kBenchMethod);
  changed.text("problem", "sizes, or the arrays", "as declared", kernel.problem(), true);
  changed.text("warning", "what was found against the kernel, or what spoils its times",
               "outputs, times and floor: splash bench", cases.front().warning);
  changed.text("cache", "state of the last-level cache before a timed call",
               "cold: flushed; warm: the arrays were read", options.cold ? "cold" : "warm", true);
  changed.text("floor_of", "what bounds a call from below", "splash bench", result.floor_of);
  changed.retell("time", "time of one call on new inputs",
                 kernel.on_cpu() ? "a monotonic clock around the call" : "between CUDA events, the call enqueued before",
                 refused);
  for (const char* name : {"time_median", "time_low", "time_high", "time_least", "time_most"})
    report.find(name)->info.missing_reason = refused;
  changed.retell("executed_flops", "FLOPs of a call", "as declared: those that its definition needs", "not declared");
  changed.retell("dram_bytes_counted", "bytes that a call must move", "as declared, or each array once, updates twice",
                 "not declared");
  changed.number("launches", "1", "kernels of a call", "as launch() noted them; 0: not known",
                 static_cast<double>(result.launches.size()));
  changed.number("time_outside", "s", "time of a call, launch included",
                 "by the clock of another process, without what no call takes; least of up to 5 trials",
                 result.seconds_outside);
  changed.number("time_floor", "s", "least time that a call can take", "FLOPs and bytes over the rates of floor_of",
                 result.floor_seconds);
  changed.number("calls_checked", "1", "calls whose outputs were checked", "all that were made", static_cast<double>(result.calls_checked));
  changed.number("elements_checked", "1", "elements of outputs that were checked", "drawn after the calls",
                 static_cast<double>(result.elements_checked));
  changed.number("error_max", "1", "largest difference of an output from its reference", "max |output - reference|",
                 result.max_absolute);
  changed.number("relative_error_max", "1", "largest relative difference of an output from its reference",
                 "max |output - reference| / |reference|", result.max_relative);
  changed.number("seed", "1", "seed of inputs, poison and checks", "drawn by the system, or as asked",
                 static_cast<double>(options.seed));
  if (kernel.on_cpu()) {
    changed.number("cores", "1", "cores that a call keeps busy", "processor time of its process over time outside", result.cores);
    changed.number("useful_flops", "FLOP", "FLOPs of a call", "as executed_flops", kernel.flops);
    changed.number("l2_bytes_counted", "bytes", "bytes that a call must move", "as dram_bytes_counted", kernel.bytes);
  }
  return report;
}

}  // namespace splash::experiments
