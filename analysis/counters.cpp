#include "analysis/counters.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "analysis/launches.h"
#include "core/error.h"

namespace splash::analysis {
namespace {

constexpr double kSector = 32;  // bytes
constexpr const char* kFunctionColumn = "kernel_counter";
constexpr const char* kRegisters = "launch__registers_per_thread";
constexpr const char* kDynamicShared = "launch__shared_mem_per_block_dynamic";
constexpr const char* kStaticShared = "launch__shared_mem_per_block_static";

std::optional<double> value_of(const NcuKernel& kernel, const CounterInfo::Term& term) {
  // "Memory Throughput" is a share in one section of the details page and a bandwidth in another.
  const bool of_two = term.quantity == Quantity::bytes_per_second;
  const auto value =
      of_two ? kernel.get_if_fits(term.metric, term.quantity) : kernel.get(term.metric, term.quantity);
  if (!value) return value;
  return term.factor * (term.quantity == Quantity::sectors ? kSector : 1) * *value;
}

// Whether a profiled kernel is the largest kernel of a case; of a case of unknown geometry, any may be.
bool is_of(const NcuKernel& seen, const KernelCase& kernel) {
  if (kernel.use.blocks == 0) return true;
  if (seen.blocks != kernel.use.blocks || seen.threads != kernel.use.threads) return false;
  const auto registers = seen.get(kRegisters, Quantity::count);
  if (registers && std::abs(*registers - kernel.use.registers) > 0.5) return false;
  const auto dynamic = seen.get(kDynamicShared, Quantity::bytes),
             fixed = seen.get(kStaticShared, Quantity::bytes);
  // The tolerance covers printed precision: six decimals of the scaled unit, or two on the details page.
  if (dynamic && fixed &&
      std::abs(*dynamic + *fixed - static_cast<double>(kernel.use.shared_bytes)) >
          std::max(1.0, 0.001 * static_cast<double>(kernel.use.shared_bytes))) {
    return false;
  }
  // A declared name may add words to the function's: "forward_kernel, long lists".
  const bool same_name = kernel.kernel.substr(0, kernel.kernel.find(',')) == seen.function();
  return same_name || (registers && dynamic && fixed);
}

// Seconds of each kernel of a call, averaged over the whole calls in the table. Empty if a call has one
// kernel or a time is missing.
std::vector<double> launch_seconds_of(const std::vector<NcuKernel>& kernels, const KernelCase& kernel) {
  const auto launches = static_cast<std::size_t>(kernel.launches);
  if (launches == 1 || kernels.size() % launches != 0) return {};
  std::vector<double> seconds(launches);
  const std::size_t calls = kernels.size() / launches;
  for (std::size_t i = 0; i < kernels.size(); ++i)
    seconds[i % launches] += counters_of(kernels[i]).seconds / static_cast<double>(calls);
  const bool known = std::none_of(seconds.begin(), seconds.end(), [](double s) { return std::isnan(s); });
  return known ? seconds : std::vector<double>{};
}

std::string geometry(int64_t blocks, int threads) {
  return fmt::format("{} blocks x {} threads", blocks, threads);
}

// If the report lists the launches of a call, the profiler must have seen them in this order; otherwise
// throws InvalidArgument.
void require_order(const std::vector<NcuKernel>& kernels, const KernelCase& kernel) {
  for (std::size_t i = 0; !kernel.all.empty() && i < kernels.size(); ++i) {
    const std::size_t at = i % kernel.all.size();
    const Launch& declared = kernel.all[at];
    const NcuKernel& seen = kernels[i];
    if (seen.blocks == declared.use.blocks && seen.threads == declared.use.threads) continue;
    throw InvalidArgument(
        fmt::format("kernel {} of a call of {} is {} ({}) in the table, but {} ({}) in the report: profile "
                    "the build that "
                    "the report is of",
                    at + 1, kernel.implementation, seen.function(), geometry(seen.blocks, seen.threads),
                    declared.kernel, geometry(declared.use.blocks, declared.use.threads)));
  }
}

// One entry per profiled call. The entry of a call of several kernels is their sum; the table must then hold
// one call, or whole calls one after the other.
std::vector<Counters> calls_of(const std::vector<NcuKernel>& kernels, const KernelCase& kernel) {
  std::vector<Counters> calls;
  const auto launches = static_cast<std::size_t>(kernel.launches);
  if (launches == 1) {
    for (const NcuKernel& seen : kernels) {
      if (is_of(seen, kernel)) calls.push_back(counters_of(seen));
    }
    return calls;
  }
  const auto refuse = [&] {
    throw InvalidArgument(fmt::format(
        "a call of {} launches {} kernels, but the table does not hold whole calls of it and nothing else: "
        "profile one call alone, as splash counters --command says",
        kernel.implementation, kernel.launches));
  };
  if (kernels.size() % launches != 0) refuse();
  require_order(kernels, kernel);
  for (std::size_t begin = 0; begin < kernels.size(); begin += launches) {
    const auto first = kernels.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto end = first + kernel.launches;
    const auto largest = std::find_if(first, end, [&](const NcuKernel& seen) { return is_of(seen, kernel); });
    if (largest == end) refuse();
    Counters sum = counters_of(*largest);
    for (auto other = first; other != end; ++other) {
      if (other == largest) continue;
      const Counters more = counters_of(*other);
      for (const CounterInfo& info : counter_infos()) {
        if (info.additive) sum.*info.member += more.*info.member;
      }
    }
    calls.push_back(sum);
  }
  return calls;
}

Counters mean_of(const std::vector<Counters>& calls) {
  Counters mean;
  for (const CounterInfo& info : counter_infos()) {
    double sum = 0;
    for (const Counters& call : calls) sum += call.*info.member;
    mean.*info.member = sum / static_cast<double>(calls.size());
  }
  return mean;
}

bool has_levels(const Counters& c) {
  return !std::isnan(c.dram_read_bytes + c.dram_write_bytes) || !std::isnan(c.l2_bytes) ||
         !std::isnan(c.tensor_flops);
}

// What remains of a positive difference after subtracting `unknown`, the bytes that may explain it.
double beyond(double difference, double unknown) {
  return difference > unknown ? difference - unknown : std::min(difference, 0.0);
}

void add_part(LevelCounts& level, const char* cause, double amount) {
  if (amount != 0 && !std::isnan(amount)) level.parts.push_back({cause, amount});
}

void explain_dram(const KernelCase& kernel, const Counters& c, LevelCounts& level) {
  const double counted_reads = std::min(kernel.input_bytes, level.counted - kernel.output_bytes);
  const double unknown = level.counted - kernel.output_bytes - counted_reads;
  const double reads = beyond(c.dram_read_bytes - counted_reads, unknown);
  double refetched = std::max(reads, 0.0);
  if (!std::isnan(c.l2_read_miss_bytes))
    refetched = std::min(refetched, std::max(0.0, c.l2_read_miss_bytes - counted_reads - unknown));
  add_part(level, "refetched tiles", refetched);
  add_part(level, "inputs not read", std::min(reads, 0.0));
  const double writes = beyond(c.dram_write_bytes - kernel.output_bytes, unknown);
  add_part(level, "write-backs", std::max(writes, 0.0));
  add_part(level, "left in L2", std::min(writes, 0.0));
}

void explain_l2(const KernelCase& kernel, const Counters& c, LevelCounts& level) {
  add_part(level, "local memory", c.local_read_bytes);
  // Models round: an excess of 1 % is no workspace.
  const bool no_workspace = kernel.dram_bytes <= 1.01 * (kernel.input_bytes + kernel.output_bytes);
  if (no_workspace)
    add_part(level, "written beyond the result", std::max(0.0, c.l2_write_bytes - kernel.output_bytes));
}

}  // namespace

Counters counters_of(const NcuKernel& kernel, const std::vector<CounterInfo>& infos) {
  Counters counters;
  for (const CounterInfo& info : infos) {
    for (const auto& terms : info.sources) {
      if (!value_of(kernel, terms.front())) continue;
      double sum = 0;
      for (const auto& term : terms) sum += value_of(kernel, term).value_or(0);
      counters.*info.member = sum;
      break;
    }
  }
  return counters;
}

std::string formula_of(const CounterInfo& info) {
  std::string text;
  for (const auto& terms : info.sources) {
    text += text.empty() ? "counter: " : ", or ";
    for (const auto& term : terms) {
      if (&term != &terms.front()) text += term.factor < 0 ? " - " : " + ";
      text +=
          fmt::format("{}{}{}", std::abs(term.factor) == 1 ? "" : fmt::format("{:g} ", std::abs(term.factor)),
                      term.quantity == Quantity::sectors ? "32 " : "", term.metric);
    }
  }
  return text + (info.additive ? " (Nsight Compute, sum over the kernels of a call)"
                               : " (Nsight Compute, of the largest kernel)");
}

std::vector<std::string> metrics_to_collect() {
  std::vector<std::string> metrics{kRegisters, kDynamicShared, kStaticShared};
  for (const CounterInfo& info : counter_infos()) {
    for (const auto& term : info.sources.front()) metrics.emplace_back(term.metric);
  }
  return metrics;
}

std::vector<CountedCase> match_counters(const std::vector<NcuKernel>& kernels,
                                        const std::vector<KernelCase>& cases) {
  std::vector<const KernelCase*> seen_cases;
  for (const NcuKernel& seen : kernels) {
    std::vector<const KernelCase*> fits;
    for (const KernelCase& kernel : cases) {
      if (is_of(seen, kernel)) fits.push_back(&kernel);
    }
    if (fits.size() > 1) {
      throw InvalidArgument(
          fmt::format("the counters of {} ({}) fit {} cases, such as {} and {} of {}: name one with --case",
                      seen.function(), geometry(seen.blocks, seen.threads), fits.size(), fits[0]->case_id,
                      fits[1]->case_id, fits[1]->implementation));
    }
    if (!fits.empty() && std::find(seen_cases.begin(), seen_cases.end(), fits[0]) == seen_cases.end())
      seen_cases.push_back(fits[0]);
  }
  if (kernels.empty()) throw InvalidArgument("there are no counters of any kernel");
  if (seen_cases.empty()) {
    const NcuKernel& first = kernels.front();
    throw InvalidArgument(fmt::format(
        "the counters are of another kernel: {} ({}) is that of none of the {} chosen cases{}",
        first.function(), geometry(first.blocks, first.threads), cases.size(),
        cases.size() == 1
            ? fmt::format(", {} ({})", cases[0].kernel, geometry(cases[0].use.blocks, cases[0].use.threads))
            : ""));
  }
  std::vector<CountedCase> result;
  for (const KernelCase* kernel : seen_cases) {
    const auto largest =
        std::find_if(kernels.begin(), kernels.end(), [&](const auto& seen) { return is_of(seen, *kernel); });
    result.push_back({*kernel, largest->function(), mean_of(calls_of(kernels, *kernel))});
    result.back().launch_seconds = launch_seconds_of(kernels, *kernel);
    if (!has_levels(result.back().counters)) {
      throw InvalidArgument(fmt::format(
          "of {} there are no counters of bytes or FLOPs, such as dram__bytes_read.sum: collect the metrics "
          "that splash counters --command names, and print them with --page raw --csv",
          largest->function()));
    }
  }
  return result;
}

void write_counters(report::Report& report, const std::vector<CountedCase>& cases) {
  const std::string reason =
      "no counters of the case were imported, or the profiler did not deliver this one";
  report::Column& functions = report::column_of(report, {.name = kFunctionColumn,
                                                         .units = "text",
                                                         .long_name = "kernel that the counters are of",
                                                         .formula = "counter: as Nsight Compute names it",
                                                         .is_text = true,
                                                         .missing_reason = reason});
  for (const CountedCase& c : cases) functions.texts[static_cast<std::size_t>(c.kernel.row)] = c.function;
  if (std::any_of(cases.begin(), cases.end(), [](const auto& c) { return !c.launch_seconds.empty(); })) {
    report::Column& seconds = report::column_of(report, launch_seconds_column());
    for (const CountedCase& c : cases) {
      if (!c.launch_seconds.empty())
        seconds.texts[static_cast<std::size_t>(c.kernel.row)] = launch_seconds_text(c.launch_seconds);
    }
  }
  for (const CounterInfo& info : counter_infos()) {
    report::Column& column = report::column_of(report, {.name = info.column,
                                                        .units = info.units,
                                                        .long_name = info.long_name,
                                                        .formula = formula_of(info),
                                                        .reproducible = false,
                                                        .missing_reason = reason});
    for (const CountedCase& c : cases)
      column.numbers[static_cast<std::size_t>(c.kernel.row)] = c.counters.*info.member;
  }
}

std::vector<CountedCase> read_counters(const report::Report& report, const std::vector<KernelCase>& cases) {
  std::vector<CountedCase> result;
  for (const KernelCase& kernel : cases) {
    CountedCase found{kernel, "", {}};
    const auto row = static_cast<std::size_t>(kernel.row);
    if (const report::Column* functions = report.find(kFunctionColumn);
        functions != nullptr && functions->info.is_text)
      found.function = functions->texts[row];
    if (const report::Column* seconds = report.find(kLaunchSecondsColumn);
        seconds != nullptr && seconds->info.is_text && !seconds->texts[row].empty())
      found.launch_seconds = parse_launch_seconds(seconds->texts[row]);
    for (const CounterInfo& info : counter_infos()) {
      const report::Column* column = report.find(info.column);
      if (column != nullptr && !column->info.is_text && column->width == 1)
        found.counters.*info.member = column->numbers[row];
    }
    result.push_back(std::move(found));
  }
  return result;
}

void add_simulated(const report::Report& report, std::vector<CountedCase>& cases) {
  for (CountedCase& c : cases) c.simulated = simulated_case(report, c.kernel.row);
}

bool LevelCounts::simulated_close() const {
  return std::abs(counter - simulated) <= kClose * simulated;
}

bool LevelCounts::close() const {
  return std::abs(counter - counted) <= kClose * counted;
}

std::vector<LevelCounts> compare_levels(const CountedCase& counted) {
  const KernelCase& kernel = counted.kernel;
  const Counters& c = counted.counters;
  std::vector<LevelCounts> levels{{.level = Level::products,
                                   .counted = kernel.flops,
                                   .counter = kernel.unit == "float32" ? report::kMissing : c.tensor_flops,
                                   .padding = std::max(0.0, kernel.flops - kernel.useful_flops)},
                                  {.level = Level::l2, .counted = kernel.l2_bytes, .counter = c.l2_bytes},
                                  {.level = Level::dram,
                                   .counted = kernel.dram_bytes,
                                   .counter = c.dram_read_bytes + c.dram_write_bytes}};
  if (counted.simulated) {
    levels[1].simulated = counted.simulated->l2_bytes;
    levels[2].simulated = counted.simulated->dram_apart_bytes;
  }
  for (LevelCounts& level : levels) {
    if (std::isnan(level.counter)) continue;
    if (level.level == Level::l2) explain_l2(kernel, c, level);
    if (level.level == Level::dram) explain_dram(kernel, c, level);
    double rest = level.counter - level.counted;
    for (const Part& part : level.parts) rest -= part.amount;
    level.parts.push_back({"unexplained", rest});
  }
  std::erase_if(levels, [](const LevelCounts& level) { return std::isnan(level.counted); });
  return levels;
}

}  // namespace splash::analysis
