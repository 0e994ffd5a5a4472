#include "analysis/roofline.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "analysis/launches.h"
#include "analysis/named_columns.h"
#include "analysis/profiled_kernel.h"
#include "core/checked.h"
#include "core/dtype.h"
#include "core/error.h"

namespace splash::analysis {
namespace {

constexpr const char* kExponentials = "exponentials";  // a ceiling and the column that counts them

bool with_backward(const NamedColumns& table, int64_t row) {
  return table.known_text("pass", row) == "forward_backward";
}

// Names only what is unusual: a mask, another normalizer than softmax, a selection, a graph, a cold cache.
void describe(const NamedColumns& table, int64_t row, KernelCase& kernel) {
  const auto number = [&](const char* name) { return table.count(name, row); };
  std::string rest = fmt::format("d {}", number("head_dim"));
  const auto add = [&](const char* column, const char* usual) {
    if (const std::string& value = table.text(column, row); value != usual) rest += ", " + value;
  };
  add("mask", "none");
  if (table.text("mask", row) == "window") rest += fmt::format(" {}", number("window"));
  add("normalizer", "softmax");
  if (const double alpha = table.known_number("alpha", row);
      table.text("normalizer", row) != "softmax" && !std::isnan(alpha))
    rest += fmt::format(" {:g}", alpha);
  add("selection", "all");
  const std::string& selection = table.text("selection", row);
  if (selection.starts_with("top_k")) rest += fmt::format(" {}", number("k_keep"));
  if (selection == "top_k_block") rest += fmt::format(" of {}", number("block"));
  if (selection == "shared_keys") rest += fmt::format(" {:g} %", 100 * table.number("share", row));
  add("method", "events");
  add("cache", "warm");
  const std::string& dtype = table.text("dtype", row);
  const std::string group =
      number("kv_heads") == number("q_heads") ? "" : fmt::format("/{}", number("kv_heads"));
  if (with_backward(table, row)) rest += ", forward and backward";
  kernel.setting = dtype + ", " + rest;
  kernel.problem = fmt::format("{}, {} x {}{} heads, {} x {}, {}", dtype, number("batch"), number("q_heads"),
                               group, number("q_len"), number("kv_len"), rest);
}

// Other columns tell more about the kernel with most threads: registers, static shared memory.
void read_launches(const NamedColumns& table, int64_t row, KernelCase& kernel) {
  const std::string text = table.known_text(kLaunchesColumn, row);
  if (text.empty()) return;
  kernel.all = parse_launches(text);
  if (kernel.all.size() != static_cast<std::size_t>(kernel.launches))
    throw ReportError(fmt::format("the column '{}' tells of {} kernels where {} are launched",
                                  kLaunchesColumn, kernel.all.size(), kernel.launches));
  for (Launch& launch : kernel.all) {
    if (launch.kernel == kernel.kernel) launch.use = kernel.use;
  }
  const std::string seen = table.known_text(kLaunchSecondsColumn, row);
  if (seen.empty()) return;
  const std::vector<double> seconds = parse_launch_seconds(seen);
  for (std::size_t i = 0; seconds.size() == kernel.all.size() && i < seconds.size(); ++i)
    kernel.all[i].seen_seconds = seconds[i];
}

std::pair<std::string, int> rung_of(const std::string& implementation) {
  const auto slash = implementation.find('/');
  if (slash == std::string::npos) return {implementation, 0};
  int rung = 0;
  const char* const begin = implementation.data() + slash + 1;
  std::from_chars(begin, implementation.data() + implementation.size(), rung);
  return {implementation.substr(0, slash), rung};
}

double measured(const std::vector<report::Ceiling>& ceilings, const std::string& name,
                const std::string& dtype = "") {
  for (const report::Ceiling& ceiling : ceilings) {
    if (ceiling.name == name && ceiling.dtype == dtype) return rate_of(ceiling);
  }
  throw ReportError(
      fmt::format("the report has no ceiling '{}'{}", name, dtype.empty() ? "" : " in " + dtype));
}

}  // namespace

std::string why_questioned(const report::Ceiling& ceiling) {
  const bool per_second = ceiling.units != "s";  // data sheets print no times
  if (!per_second || !(ceiling.datasheet > 0) || !(ceiling.measured > kOver * ceiling.datasheet)) return "";
  return fmt::format("the ceiling '{}'{} was measured at {:.0f} % of the data sheet", ceiling.name,
                     ceiling.dtype.empty() ? "" : " in " + ceiling.dtype,
                     100 * ceiling.measured / ceiling.datasheet);
}

const char* to_string(Level level) {
  switch (level) {
    case Level::products:
      return "products";
    case Level::l2:
      return "L2";
    case Level::dram:
      return "DRAM";
  }
  return "";
}

double rate_of(const report::Ceiling& ceiling) {
  return std::isnan(ceiling.measured) ? ceiling.datasheet : ceiling.measured;
}

double Floors::highest() const {
  return std::fmax(products, std::fmax(l2, dram));
}

double Floors::sum() const {
  const auto known = [](double floor) { return std::isnan(floor) ? 0 : floor; };
  return known(products) + known(l2) + known(dram);
}

Floors Floors::within(double seconds) const {
  Floors floors = *this;
  if (floors.l2 > kOver * seconds) floors.l2 = 0;
  if (floors.dram > kOver * seconds) floors.dram = 0;
  return floors;
}

Level Floors::level() const {
  const double most = highest();
  return products == most ? Level::products : l2 == most ? Level::l2 : Level::dram;
}

void count_tensors(KernelCase& kernel) {
  const AttentionShape& shape = kernel.shape;
  const auto row_bytes = static_cast<double>(bytes_of(kernel.dtype) * shape.head_dim);
  kernel.output_bytes = row_bytes * static_cast<double>(shape.rows());
  kernel.input_bytes =
      kernel.output_bytes + 2 * row_bytes * static_cast<double>(shape.batch * shape.kv_heads * shape.kv_len);
}

KernelCase as_counters_saw(KernelCase kernel) {
  if (!std::isnan(kernel.l2_traffic)) kernel.l2_bytes = kernel.l2_traffic;
  if (!std::isnan(kernel.dram_traffic)) kernel.dram_bytes = kernel.dram_traffic;
  return kernel;
}

int instruction_rows(std::string_view unit) {
  return unit == "float32" ? 1 : 16;
}

bool are_neighbouring_rungs(const KernelCase& a, const KernelCase& b) {
  const auto [ladder, rung] = rung_of(a.implementation);
  const auto [other_ladder, other_rung] = rung_of(b.implementation);
  return ladder == other_ladder && std::abs(rung - other_rung) <= 1;
}

std::vector<KernelCase> kernel_cases(const report::Report& report, Calls calls) {
  const NamedColumns table(report);
  std::vector<KernelCase> cases;
  for (int64_t row = 0; row < report.cases(); ++row) {
    const auto number = [&](const char* name) { return table.number(name, row); };
    // Skips cases that were not run, peers, whose work is not counted, and CPU cases (cpu_roofline.h).
    if (std::isnan(number("time_median"))) continue;
    if (is_profiled(table, row)) {
      cases.push_back(profiled_kernel(table, row));
      continue;
    }
    if (std::isnan(number("executed_flops"))) continue;
    if (table.known_text("math_unit", row).starts_with(kCpuUnit)) continue;
    if (calls == Calls::forward && with_backward(table, row)) continue;
    KernelCase found;
    found.row = row;
    found.case_id = table.text("case_id", row);
    found.implementation = table.text("implementation", row);
    describe(table, row, found);
    const auto whole = [&](const char* name) { return table.count(name, row); };
    found.shape = {whole("batch"), whole("q_heads"), whole("kv_heads"),
                   whole("q_len"), whole("kv_len"),  whole("head_dim")};
    found.shape.validate();
    found.dtype = dtype_from_string(table.text("dtype", row));
    const bool window = table.text("mask", row) == "window";
    found.causal = window || table.text("mask", row) == "causal";
    if (window) found.window = whole("window");
    found.tile_q = whole("tile_q");
    found.tile_k = whole("tile_k");
    found.stages = table.small_count("stages", row);
    found.seconds = number("time_median");
    found.seconds_low = table.known_number("time_low", row);
    found.seconds_high = table.known_number("time_high", row);
    found.flops = number("executed_flops");
    found.useful_flops = number("useful_flops");
    found.support = table.known_number("support_mean", row);
    count_tensors(found);
    found.kernel = table.text("kernel", row);
    found.dram_bytes = number("dram_bytes_counted");
    found.l2_bytes = number("l2_bytes_counted");
    found.exponentials = table.known_number(kExponentials, row);
    if (const double q = table.known_number("instruction_q", row); q >= 1 && q <= 1024)
      found.instruction_q = static_cast<int>(q);
    found.unit = table.text("math_unit", row);
    // Both 16-bit types run on one unit, which is declared as float16, but each has its own ceiling.
    if (found.unit == "float16") found.unit = table.text("dtype", row) == "float16" ? "float16" : "bfloat16";
    found.launches = table.small_count("launches", row);
    found.replayed = table.text("method", row) == "graph";
    found.use = {.blocks = whole("blocks"),
                 .threads = table.small_count("threads", row),
                 .registers = table.small_count("registers", row),
                 .shared_bytes = whole("shared_bytes")};
    read_launches(table, row, found);
    found.resident_blocks = table.small_count("blocks_per_multiprocessor", row);
    found.idea = table.known_text("idea", row);
    found.clock_hz = (table.known_number("clock_before", row) + table.known_number("clock_after", row)) / 2;
    found.instructions = table.known_number("instructions_counter", row);
    found.shared_traffic = kWavefrontBytes * table.known_number("shared_wavefronts_counter", row);
    found.l2_traffic = table.known_number("l2_bytes_counter", row);
    found.dram_traffic = table.known_number("dram_read_bytes_counter", row) +
                         table.known_number("dram_write_bytes_counter", row);
    cases.push_back(std::move(found));
  }
  return cases;
}

Floors floors_of(const KernelCase& kernel, const std::vector<report::Ceiling>& ceilings) {
  const double dram = std::max(measured(ceilings, "dram copy", ""), measured(ceilings, "dram read", ""));
  const auto rate = [&](const std::string& unit) {
    return measured(ceilings, unit == "float32" ? "fma" : "tensor", unit);
  };
  double of_own_units = 0, seconds = 0;
  for (const Launch& launch : kernel.all) {
    if (launch.unit.empty() || launch.flops == 0) continue;
    of_own_units += launch.flops;
    seconds += launch.flops / rate(launch.unit);
  }
  return {.products = seconds + (kernel.flops - of_own_units) / rate(kernel.unit),
          .l2 = kernel.l2_bytes / measured(ceilings, "l2 read", ""),
          .dram = kernel.dram_bytes / dram};
}

double shared_seconds(const KernelCase& kernel, const std::vector<report::Ceiling>& ceilings) {
  if (std::isnan(kernel.shared_traffic)) return kernel.shared_traffic;
  return kernel.shared_traffic / measured(ceilings, "shared read");
}

bool has_ceiling(const std::vector<report::Ceiling>& ceilings, const std::string& name) {
  return std::any_of(ceilings.begin(), ceilings.end(),
                     [&](const report::Ceiling& c) { return c.name == name && c.measured > 0; });
}

double exponential_seconds(const KernelCase& kernel, const Multiprocessors& machine,
                           const std::vector<report::Ceiling>& ceilings) {
  if (!(kernel.exponentials > 0)) return kernel.exponentials;
  if (has_ceiling(ceilings, kExponentials)) return kernel.exponentials / measured(ceilings, kExponentials);
  if (machine.exponentials == 0) return std::numeric_limits<double>::quiet_NaN();
  return kernel.exponentials / (machine.exponentials * machine.count * kernel.clock_hz);
}

double launch_seconds(const KernelCase& kernel, const std::vector<report::Ceiling>& ceilings) {
  const bool timed_with_launches =
      kernel.benched && has_ceiling(ceilings, "launch") && has_ceiling(ceilings, "graph node");
  if (kernel.profiled && !timed_with_launches) return 0;
  const double node = measured(ceilings, "graph node", "");
  return (kernel.replayed ? node : measured(ceilings, "launch", "")) + (kernel.launches - 1) * node;
}

double seconds_behind_launch(const KernelCase& kernel, double launch) {
  return std::max(kernel.seconds - launch, 0.01 * kernel.seconds);
}

}  // namespace splash::analysis
