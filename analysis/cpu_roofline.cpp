#include "analysis/cpu_roofline.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

#include "analysis/profiled_kernel.h"
#include "core/error.h"

namespace splash::analysis {
namespace {

const std::string& text_at(const report::Report& report, const char* name, std::size_t row) {
  static const std::string none;
  const report::Column* column = report.find(name);
  return column == nullptr || !column->info.is_text ? none : column->texts[row];
}

double number_at(const report::Report& report, const char* name, std::size_t row) {
  const report::Column* column = report.find(name);
  return column == nullptr || column->info.is_text || column->width != 1 ? report::kMissing
                                                                         : column->numbers[row];
}

double needed(const report::Report& report, const char* name, std::size_t row) {
  const double value = number_at(report, name, row);
  if (value >= 0) return value;
  throw ReportError(fmt::format("a case on the CPU has no column '{}' with a number, 0 or more", name));
}

// The highest of the ceilings that have one of these names.
double measured(const std::vector<report::Ceiling>& ceilings, std::initializer_list<const char*> names,
                const std::string& dtype = "") {
  double highest = 0;
  for (const report::Ceiling& ceiling : ceilings) {
    const bool named = std::find(names.begin(), names.end(), ceiling.name) != names.end();
    if (named && ceiling.dtype == dtype && ceiling.measured > highest) highest = ceiling.measured;
  }
  if (highest > 0) return highest;
  throw ReportError(
      fmt::format("the report has no ceiling '{}'{}", *names.begin(), dtype.empty() ? "" : " in " + dtype));
}

std::string problem_of(const report::Report& report, std::size_t row) {
  if (text_at(report, "method", row) == kBenchMethod) return text_at(report, "problem", row);
  std::string words = text_at(report, "pass", row);
  for (const char* name : {"n", "heads", "head_dim"})
    words += fmt::format("{}{} {:g}", words.empty() ? "" : ", ", name, number_at(report, name, row));
  return number_at(report, "causal", row) == 1 ? words + ", causal" : words;
}

}  // namespace

std::vector<CpuCase> cpu_cases(const report::Report& report) {
  const std::string_view prefix = kCpuUnit;
  std::vector<CpuCase> cases;
  for (int64_t i = 0; i < report.cases(); ++i) {
    const auto row = static_cast<std::size_t>(i);
    const std::string& unit = text_at(report, "math_unit", row);
    if (!unit.starts_with(prefix)) continue;
    if (text_at(report, "method", row) == kBenchMethod && std::isnan(number_at(report, "time_median", row)))
      continue;  // it was not believed
    const double threads = needed(report, "threads", row);
    cases.push_back({.row = i,
                     .case_id = text_at(report, "case_id", row),
                     .implementation = text_at(report, "implementation", row),
                     .problem = problem_of(report, row),
                     .dtype = unit.substr(prefix.size()),
                     .threads = threads < 1e6 ? static_cast<int64_t>(threads) : 0,
                     .cores = number_at(report, "cores", row),
                     .seconds = needed(report, "time_median", row),
                     .flops = needed(report, "executed_flops", row),
                     .useful_flops = needed(report, "useful_flops", row),
                     .l2_bytes = needed(report, "l2_bytes_counted", row),
                     .dram_bytes = needed(report, "dram_bytes_counted", row),
                     .l2_hit_bytes = number_at(report, "l2_hit_bytes_simulated", row),
                     .dram_simulated = number_at(report, "dram_read_bytes_simulated", row) +
                                       number_at(report, "dram_write_bytes_simulated", row)});
  }
  return cases;
}

Floors floors_of(const CpuCase& cpu, const std::vector<report::Ceiling>& ceilings) {
  return {.products = cpu.flops / measured(ceilings, {"cpu fma"}, cpu.dtype),
          .l2 = cpu.l2_bytes / measured(ceilings, {"cpu l2 read", "cpu dram read"}),
          .dram = cpu.dram_bytes / measured(ceilings, {"cpu dram read", "cpu dram copy"})};
}

Finding finding_of(const CpuCase& cpu, const std::vector<report::Ceiling>& ceilings) {
  const Floors floors = floors_of(cpu, ceilings);
  const Level level = floors.within(cpu.seconds).level();
  const double share = floors.within(cpu.seconds).highest() / cpu.seconds;
  const std::string name = level == Level::products ? "the units that multiply" : to_string(level);
  const std::string stands = fmt::format(
      "{} would need {:.3g} % of the time at the measured ceiling of all threads", name, 100 * share);
  if (share >= kBusy) {
    const Cause cause = level == Level::products ? Cause::products
                        : level == Level::l2     ? Cause::l2
                                                 : Cause::dram;
    return {cause, std::max(1.0, 1 / share), stands + ": only less work for it helps"};
  }
  const auto threads = static_cast<double>(cpu.threads);
  if (cpu.cores < kBusy * threads) {
    return {Cause::parallelism, std::min(threads / cpu.cores, 1 / share),
            fmt::format("it keeps {:.2g} of {} cores busy; {}", cpu.cores, cpu.threads, stands)};
  }
  return {
      Cause::inside, 1 / share,
      fmt::format("{}, and nothing else that is known more: its instructions, the caches or their latency",
                  stands)};
}

}  // namespace splash::analysis
