#include "analysis/launches.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/checked.h"
#include "core/error.h"

namespace splash::analysis {
namespace {

using nlohmann::json;

constexpr std::size_t kMostLaunches = 4096;

[[noreturn]] void refuse(const std::string& why) {
  throw ReportError(
      fmt::format("the column '{}' does not hold the kernels of a call: {}", kLaunchesColumn, why));
}

json array_of(const std::string& text) {
  json list = json::parse(text, nullptr, false);
  if (!list.is_array() || list.size() > kMostLaunches) refuse("it is no list");
  return list;
}

double number_at(const json& launch, const char* name) {
  const auto found = launch.find(name);
  if (found == launch.end() || !found->is_number() || !(found->get<double>() >= 0))
    refuse(fmt::format("'{}' must be a number, 0 or more", name));
  return found->get<double>();
}

int64_t count_at(const json& launch, const char* name, int64_t most = int64_t{1} << 53) {
  const auto whole = checked_count(number_at(launch, name));
  if (!whole || *whole > most) refuse(fmt::format("'{}' must be a whole number up to {}", name, most));
  return *whole;
}

// The work of one launch, as a case of its own.
KernelCase alone(const KernelCase& kernel, const Launch& launch) {
  KernelCase one = kernel;
  one.all.clear();
  if (!launch.unit.empty()) one.unit = launch.unit;
  one.flops = launch.flops;
  one.l2_bytes = launch.l2_bytes;
  one.dram_bytes = launch.dram_bytes;
  one.exponentials = launch.exponentials;
  return one;
}

// Resident warps on a multiprocessor that has blocks, as a share of the most it can hold.
double resident_share(const KernelUse& use, const Multiprocessors& machine) {
  const Occupancy occupancy = occupancy_of(machine, use);
  const double each = std::ceil(static_cast<double>(use.blocks) / machine.count);
  return occupancy.warps_share * std::min(1.0, each / std::max(1, occupancy.blocks));
}

// Relative times of the launches, in no unit. If no level is busy, a kernel's rate on each level is in
// proportion to the number of warps that wait for it at the same time (Little's law).
std::vector<double> estimated_times(const KernelCase& kernel, const Multiprocessors& machine,
                                    const std::vector<report::Ceiling>& ceilings) {
  std::vector<double> times;
  for (const Launch& launch : kernel.all) {
    const Floors floors = floors_of(alone(kernel, launch), ceilings);
    const double exponentials = exponential_seconds(alone(kernel, launch), machine, ceilings);
    times.push_back((floors.products + floors.l2 + floors.dram + (exponentials > 0 ? exponentials : 0)) /
                    (busy_share(launch.use, machine) * resident_share(launch.use, machine)));
  }
  return times;
}

}  // namespace

std::string launches_text(const std::vector<Launch>& launches) {
  json list = json::array();
  for (const Launch& launch : launches) {
    list.push_back({{"kernel", launch.kernel},
                    {"blocks", launch.use.blocks},
                    {"threads", launch.use.threads},
                    {"registers", launch.use.registers},
                    {"shared_bytes", launch.use.shared_bytes},
                    {"executed_flops", launch.flops},
                    {"l2_bytes", launch.l2_bytes},
                    {"dram_bytes", launch.dram_bytes},
                    {"exponentials", launch.exponentials}});
    if (!launch.unit.empty()) list.back()["unit"] = launch.unit;
  }
  return list.dump();
}

std::vector<Launch> parse_launches(const std::string& text) {
  std::vector<Launch> launches;
  for (const json& item : array_of(text)) {
    const auto name = item.is_object() ? item.find("kernel") : item.end();
    if (!item.is_object() || name == item.end() || !name->is_string()) refuse("a kernel has no name");
    Launch launch;
    launch.kernel = name->get<std::string>();
    launch.use = {.blocks = count_at(item, "blocks"),
                  .threads = static_cast<int>(count_at(item, "threads", 1024)),
                  .registers = static_cast<int>(count_at(item, "registers", 255)),
                  .shared_bytes = count_at(item, "shared_bytes", 1 << 24)};
    if (launch.use.blocks < 1 || launch.use.threads < 1) refuse("a kernel has no blocks, or they no threads");
    launch.flops = number_at(item, "executed_flops");
    launch.l2_bytes = number_at(item, "l2_bytes");
    launch.dram_bytes = number_at(item, "dram_bytes");
    launch.exponentials = number_at(item, "exponentials");
    if (const auto unit = item.find("unit"); unit != item.end()) {
      if (!unit->is_string()) refuse("a kernel's unit is no text");
      launch.unit = unit->get<std::string>();
    }
    launches.push_back(std::move(launch));
  }
  return launches;
}

std::string launch_seconds_text(const std::vector<double>& seconds) {
  return json(seconds).dump();
}

std::vector<double> parse_launch_seconds(const std::string& text) {
  std::vector<double> seconds;
  for (const json& item : array_of(text)) {
    if (!item.is_number() || !(item.get<double>() >= 0)) refuse("a time is no number, 0 or more");
    seconds.push_back(item.get<double>());
  }
  return seconds;
}

report::ColumnInfo launches_column() {
  return {
      .name = kLaunchesColumn,
      .units = "text",
      .long_name = "all kernels of a call, in order of launch",
      .formula =
          "JSON: as declared, counted by each kernel's own trace; registers (0: not known) as the compiler "
          "says",
      .is_text = true,
      .missing_reason = "a call is one kernel, of which other columns tell, or the case was not run"};
}

report::ColumnInfo launch_seconds_column() {
  return {.name = kLaunchSecondsColumn,
          .units = "text",
          .long_name = "seconds of each kernel of a call, in order of launch, under the profiler",
          .formula = "counter: JSON, gpu__time_duration.sum (Nsight Compute)",
          .is_text = true,
          .reproducible = false,
          .missing_reason = "no counters of the case were imported, or a call of it is one kernel"};
}

double busy_share(const KernelUse& use, const Multiprocessors& machine) {
  const Occupancy occupancy = occupancy_of(machine, use);
  if (occupancy.waves > 1) return occupancy.wave_yield;
  const auto blocks = static_cast<double>(use.blocks);
  return blocks / (machine.count * std::ceil(blocks / machine.count));
}

void describe_longest(KernelCase& kernel, const Multiprocessors& machine,
                      const std::vector<report::Ceiling>& ceilings) {
  if (kernel.all.empty()) return;
  std::vector<double> times;
  for (const Launch& launch : kernel.all) times.push_back(launch.seen_seconds);
  kernel.launches_seen = std::none_of(times.begin(), times.end(), [](double t) { return std::isnan(t); });
  if (!kernel.launches_seen) times = estimated_times(kernel, machine, ceilings);
  const double sum = std::accumulate(times.begin(), times.end(), 0.0);
  if (!(sum > 0)) return;
  const double behind = seconds_behind_launch(kernel, launch_seconds(kernel, ceilings));
  for (std::size_t i = 0; i < times.size(); ++i) kernel.all[i].seconds = behind * times[i] / sum;
  kernel.longest = static_cast<int>(std::max_element(times.begin(), times.end()) - times.begin());
  const Launch& longest = kernel.all[static_cast<std::size_t>(kernel.longest)];
  kernel.kernel = longest.kernel;
  kernel.use = longest.use;
}

std::vector<KernelCase> described_kernels(std::vector<KernelCase> kernels, const Multiprocessors& machine,
                                          const std::vector<report::Ceiling>& ceilings) {
  for (KernelCase& kernel : kernels) describe_longest(kernel, machine, ceilings);
  return kernels;
}

std::vector<KernelCase> described_kernels(const report::Report& report, const Multiprocessors& machine) {
  return described_kernels(kernel_cases(report), machine, report.ceilings);
}

const Launch* longest_launch(const KernelCase& kernel) {
  return kernel.longest < 0 ? nullptr : &kernel.all[static_cast<std::size_t>(kernel.longest)];
}

}  // namespace splash::analysis
