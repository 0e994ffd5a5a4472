// The report of imported cases: its ceilings and its columns.

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "analysis/profile_import.h"
#include "analysis/profiled_kernel.h"
#include "analysis/statistics.h"
#include "core/fnv1a.h"

namespace splash::analysis {
namespace {

constexpr int64_t kMostSamples = 4096, kMostCells = 4 << 20;

std::string hash_of(const std::string& text) {
  return fmt::format("{:016x}", Fnv1a().add(std::as_bytes(std::span(text))).value());
}

std::string cut(const std::string& text) {
  constexpr std::size_t kMost = 160;
  return text.size() <= kMost ? text : text.substr(0, kMost) + " ...";
}

// Adds one column after another, each with a value per case.
class Columns {
 public:
  explicit Columns(const std::vector<ProfiledCase>& cases) : cases_(cases) {}

  template <class Value>
  void text(const char* name, const char* long_name, const char* formula, const Value& value_of,
            const char* missing = "", bool is_parameter = false) {
    report::Column column{.info = {.name = name,
                                   .units = "text",
                                   .long_name = long_name,
                                   .formula = formula,
                                   .is_text = true,
                                   .is_parameter = is_parameter,
                                   .reproducible = is_parameter,
                                   .missing_reason = missing}};
    for (const ProfiledCase& c : cases_) column.texts.push_back(value_of(c));
    columns_.push_back(std::move(column));
  }
  template <class Value>
  void number(const char* name, const char* units, const char* long_name, const std::string& formula,
              const Value& value_of) {
    report::Column column{.info = {.name = name,
                                   .units = units,
                                   .long_name = long_name,
                                   .formula = formula,
                                   .reproducible = false,
                                   .missing_reason = kUntold}};
    for (const ProfiledCase& c : cases_) column.numbers.push_back(static_cast<double>(value_of(c)));
    columns_.push_back(std::move(column));
  }
  void samples() {
    const auto most = std::max_element(cases_.begin(), cases_.end(), [](const auto& a, const auto& b) {
                        return a.seconds.size() < b.seconds.size();
                      })->seconds.size();
    const auto cases = static_cast<int64_t>(cases_.size());
    report::Column column{
        .info = {.name = "time",
                 .units = "s",
                 .long_name = "time of one launch under the profiler",
                 .formula = fmt::format("gpu__time_duration.sum, or Duration; of a summary the average; "
                                        "of more than {} launches the first",
                                        kMostSamples),
                 .reproducible = false,
                 .missing_reason = kUntold,
                 .dimension = "sample"}};
    column.width =
        std::min({static_cast<int64_t>(most), kMostSamples, std::max<int64_t>(1, kMostCells / cases)});
    for (const ProfiledCase& c : cases_) {
      for (int64_t i = 0; i < column.width; ++i)
        column.numbers.push_back(i < static_cast<int64_t>(c.seconds.size())
                                     ? c.seconds[static_cast<std::size_t>(i)]
                                     : report::kMissing);
    }
    columns_.push_back(std::move(column));
  }
  std::vector<report::Column> operator()() && { return std::move(columns_); }

 private:
  static constexpr const char* kUntold = "the table does not tell it";
  const std::vector<ProfiledCase>& cases_;
  std::vector<report::Column> columns_{};
};

// The same kernel has the same id in every import, so that two reports can be compared.
std::vector<std::string> case_ids(const std::vector<ProfiledCase>& cases) {
  std::map<std::string, int> seen;
  std::vector<std::string> ids;
  for (const ProfiledCase& c : cases) {
    const std::string key = fmt::format("{}\n{}\n{}", c.name, c.use.blocks, c.use.threads);
    ids.push_back(hash_of(fmt::format("{}\n{}", key, seen[key]++)));
  }
  return ids;
}

bool several(const std::vector<ProfiledCase>& cases, std::string ProfiledCase::*member) {
  return std::any_of(cases.begin(), cases.end(),
                     [&](const ProfiledCase& c) { return c.*member != cases.front().*member; });
}

}  // namespace

std::vector<report::Ceiling> datasheet_ceilings(const ProfiledGpu& gpu) {
  struct Known {
    const char *name, *dtype, *units;
  };
  constexpr Known kKnown[] = {{"dram copy", "", "bytes/s"},     {"dram read", "", "bytes/s"},
                              {"l2 read", "", "bytes/s"},       {"shared read", "", "bytes/s"},
                              {"fma", "float32", "FLOP/s"},     {"exponentials", "", "1/s"},
                              {"tensor", "tf32", "FLOP/s"},     {"tensor", "float16", "FLOP/s"},
                              {"tensor", "bfloat16", "FLOP/s"}, {"tensor", "float8_e4m3", "FLOP/s"}};
  std::vector<report::Ceiling> ceilings;
  for (const Known& known : kKnown) {
    const double peak = gpu.machine ? gpu.machine->peak(known.name, known.dtype) : report::kMissing;
    ceilings.push_back({.name = known.name,
                        .dtype = known.dtype,
                        .units = known.units,
                        .method = std::isnan(peak)
                                      ? "not known: no data sheet tells it, and it was not measured"
                                      : "not measured: the data sheet's figure stands in for it",
                        .measured = report::kMissing,
                        .low = report::kMissing,
                        .high = report::kMissing,
                        .datasheet = peak});
  }
  return ceilings;
}

report::Report profiled_report(const std::vector<ProfiledCase>& cases, const ProfiledGpu& gpu,
                               std::vector<report::Ceiling> ceilings) {
  Columns add(cases);
  const bool processes = several(cases, &ProfiledCase::process),
             devices = several(cases, &ProfiledCase::device);
  const std::vector<std::string> ids = case_ids(cases);
  const auto place = [&](const ProfiledCase& c) { return static_cast<std::size_t>(&c - cases.data()); };
  add.text("experiment", "what the case is of", "import: a profiler's table",
           [](const auto&) { return "import"; });
  add.text("case_id", "identifies the case",
           "hash of the kernel's name, grid and block, and of their place among equal ones",
           [&](const auto& c) { return ids[place(c)]; });
  add.text(
      "implementation", "the kernel", "its function, with template arguments where several have one function",
      [](const auto& c) { return c.implementation; }, "", true);
  add.text(
      "problem", "name, grid and block", "as the profiler prints them",
      [&](const auto& c) {
        return fmt::format("{}, {} blocks x {} threads{}{}", cut(c.name), c.use.blocks, c.use.threads,
                           processes ? ", process " + c.process : "", devices ? ", device " + c.device : "");
      },
      "", true);
  add.text("kernel", "the kernel's function", "as the profiler prints it",
           [](const auto& c) { return c.implementation; });
  add.text("method", "how the time was taken", "profiler: alone, launches left out",
           [](const auto&) { return kProfilerMethod; });
  add.text("math_unit", "dtype of the units that multiply",
           "that of most FLOPs of the tensor cores, else float32", [](const auto& c) { return c.unit; });
  add.text("dtype", "dtype of the units that multiply", "as math_unit", [](const auto& c) { return c.unit; });
  add.text(
      "warning", "what cannot be in the table", "counts against peaks, clock and time: splash import",
      [](const auto& c) { return c.warning; }, "nothing in the table contradicts the rest");
  add.text(
      kStallsColumn, "why warps wait, as shares of their cycles", "JSON: smsp__average_warps_issue_stalled_*",
      [](const auto& c) { return stalls_text(c.stalls); }, "the table does not tell it");
  add.number("launches", "1", "kernels of a call", "one", [](const auto&) { return 1; });
  add.number("launches_profiled", "1", "launches that the table tells of",
             "rows, or Invocations of a summary", [](const auto& c) { return c.launches; });
  add.number("blocks", "1", "blocks of the grid", "Grid Size", [](const auto& c) { return c.use.blocks; });
  add.number("threads", "1", "threads of a block", "Block Size", [](const auto& c) { return c.use.threads; });
  add.number("registers", "1", "registers of a thread; 0: not told", "launch__registers_per_thread",
             [](const auto& c) { return c.use.registers; });
  add.number("shared_bytes", "bytes", "shared memory of a block; 0: none, or not told",
             "launch__shared_mem_per_block_dynamic + launch__shared_mem_per_block_static",
             [](const auto& c) { return c.use.shared_bytes; });
  add.samples();
  add.number("time_median", "s", "median time of a launch", "median of time",
             [](const auto& c) { return median(c.seconds); });
  const auto interval = [](const ProfiledCase& c) {
    constexpr Interval kNone{report::kMissing, report::kMissing};
    return c.seconds.size() < static_cast<std::size_t>(samples_needed()) ? kNone : median_interval(c.seconds);
  };
  add.number("time_low", "s", "lower end of the median's 95 % interval",
             "order statistics of time, of 6 and more", [&](const auto& c) { return interval(c).low; });
  add.number("time_high", "s", "upper end of the median's 95 % interval",
             "order statistics of time, of 6 and more", [&](const auto& c) { return interval(c).high; });
  add.number("time_least", "s", "least time of a launch", "least of all launches",
             [](const auto& c) { return c.least; });
  add.number("time_most", "s", "largest time of a launch", "largest of all launches",
             [](const auto& c) { return c.most; });
  add.number("executed_flops", "FLOP", "FLOPs of math_unit", "tensor_flops_counter, or float32_flops_counter",
             [](const auto& c) { return c.flops; });
  add.number("dram_bytes_counted", "bytes", "bytes of DRAM",
             "the profiler's: dram_bytes_counter, or dram_bandwidth_counter x time",
             [](const auto& c) { return c.dram_bytes; });
  add.number("l2_bytes_counted", "bytes", "bytes asked of L2", "the profiler's: l2_bytes_counter",
             [](const auto& c) { return c.counters.l2_bytes; });
  add.number(
      "compute_capability", "1", "compute capability of the GPU, times ten", "column CC",
      [&](const auto&) { return gpu.compute_capability == 0 ? report::kMissing : gpu.compute_capability; });
  for (const auto* infos : {&counter_infos(), &profile_infos()}) {
    for (const CounterInfo& info : *infos)
      add.number(info.column, info.units, info.long_name, formula_of(info),
                 [&](const auto& c) { return c.counters.*info.member; });
  }
  report::Report report;
  report.ceilings = std::move(ceilings);
  report.results = std::move(add)();
  return report;
}

}  // namespace splash::analysis
