#include "analysis/profile_import.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "analysis/profiled_kernel.h"
#include "analysis/statistics.h"
#include "core/error.h"
#include "core/suggest.h"

namespace splash::analysis {
namespace {

using Key = std::tuple<std::string, std::string, std::string, int64_t, int>;

// Fills what follows from other counters of the same launch.
Counters complete(Counters c) {
  if (std::isnan(c.seconds)) c.seconds = c.cycles / c.clock_hz;
  if (std::isnan(c.clock_hz)) c.clock_hz = c.cycles / c.seconds;
  if (std::isnan(c.dram_bytes)) c.dram_bytes = c.dram_read_bytes + c.dram_write_bytes;
  if (std::isnan(c.dram_bytes)) c.dram_bytes = c.dram_bandwidth * c.seconds;
  if (std::isnan(c.float32_flops)) c.float32_flops = c.float32_per_cycle * c.clock_hz * c.seconds;
  return c;
}

Counters launch_counters(const NcuKernel& kernel) {
  Counters counters = counters_of(kernel);
  const Counters more = counters_of(kernel, profile_infos());
  for (const CounterInfo& info : profile_infos()) counters.*info.member = more.*info.member;
  return complete(counters);
}

Counters median_of(const std::vector<Counters>& launches) {
  Counters result;
  for (const auto* infos : {&counter_infos(), &profile_infos()}) {
    for (const CounterInfo& info : *infos) {
      std::vector<double> values;
      for (const Counters& launch : launches) values.push_back(launch.*info.member);
      result.*info.member = median(values);
    }
  }
  return result;
}

double first_known(const NcuKernel& kernel, Quantity quantity, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const auto value = kernel.get(name, quantity)) return *value;
  }
  return report::kMissing;
}

KernelUse use_of(const NcuKernel& kernel) {
  if (kernel.blocks < 1 || kernel.threads < 1) {
    throw InvalidArgument(
        fmt::format("the table does not tell the grid and block of {}: it needs the columns Grid Size and "
                    "Block Size, or the "
                    "metrics launch__grid_size and launch__block_size",
                    kernel.function()));
  }
  if (constexpr int64_t kMostBlocks = int64_t{1} << 53; kernel.blocks > kMostBlocks) {
    throw InvalidArgument(
        fmt::format("the table's grid of {} has {} blocks, more than CUDA launches; likely the notation",
                    kernel.function(), kernel.blocks));
  }
  const auto known = [&](Quantity quantity, std::initializer_list<const char*> names) {
    const double value = first_known(kernel, quantity, names);
    constexpr double kMost = 1 << 24;
    return value >= 0 && value <= kMost ? std::llround(value) : 0;
  };
  KernelUse use{.blocks = kernel.blocks,
                .threads = kernel.threads,
                .registers = static_cast<int>(
                    known(Quantity::count, {"launch__registers_per_thread", "Registers Per Thread"})),
                .shared_bytes = 0};
  use.shared_bytes =
      known(Quantity::bytes, {"launch__shared_mem_per_block_dynamic", "Dynamic Shared Memory Per Block"}) +
      known(Quantity::bytes, {"launch__shared_mem_per_block_static", "Static Shared Memory Per Block"});
  return use;
}

// The dtype in which most of the tensor cores' FLOPs are; "float32" if they have none.
std::string unit_of(const NcuKernel& kernel) {
  constexpr std::pair<const char*, const char*> kUnits[] = {
      {"float16", "sm__ops_path_tensor_src_fp16.sum"},
      {"bfloat16", "sm__ops_path_tensor_src_bf16_dst_fp32.sum"},
      {"tf32", "sm__ops_path_tensor_src_tf32_dst_fp32.sum"},
      {"float8_e4m3", "sm__ops_path_tensor_src_fp8.sum"}};
  std::string unit = "float32";
  double most = 0;
  for (const auto& [name, metric] : kUnits) {
    const double flops = kernel.get(metric, Quantity::count).value_or(0);
    if (flops <= most) continue;
    most = flops;
    unit = name;
  }
  return unit;
}

ProfiledCase case_of(const std::vector<const NcuKernel*>& launches) {
  const NcuKernel& first = *launches.front();
  ProfiledCase result{.name = first.name,
                      .implementation = first.function(),
                      .process = first.process,
                      .device = first.device,
                      .cc = first.cc,
                      .use = use_of(first)};
  std::vector<Counters> all;
  for (const NcuKernel* launch : launches) {
    all.push_back(launch_counters(*launch));
    result.launches += launch->invocations;
    const double seconds = all.back().seconds;
    if (!std::isnan(seconds)) result.seconds.push_back(seconds);
    double least = seconds, most = seconds;
    for (const char* name : {"gpu__time_duration.sum", "gpu__time_duration.avg", "Duration"}) {
      least = std::fmin(least, launch->least(name, Quantity::seconds).value_or(seconds));
      most = std::fmax(most, launch->most(name, Quantity::seconds).value_or(seconds));
    }
    result.least = std::fmin(result.least, least);
    result.most = std::fmax(result.most, most);
    WarpStalls stalls = warp_stalls(*launch);
    if (stalls.shares.size() > result.stalls.shares.size()) result.stalls = std::move(stalls);
    if (const std::string unit = unit_of(*launch); unit != "float32") result.unit = unit;
  }
  result.counters = median_of(all);
  result.flops = result.unit == "float32" ? result.counters.float32_flops : result.counters.tensor_flops;
  result.dram_bytes = result.counters.dram_bytes;
  return result;
}

// "saxpy<4, float>": the name without the type of the result, scopes and arguments.
std::string with_template_arguments(const std::string& name, const std::string& function) {
  const std::size_t at = name.find(function + "<");
  if (at == std::string::npos) return function;
  int depth = 0;
  for (std::size_t end = at + function.size(); end < name.size(); ++end) {
    depth += name[end] == '<' ? 1 : name[end] == '>' ? -1 : 0;
    if (depth == 0) return name.substr(at, end + 1 - at);
  }
  return function;
}

void name_apart(std::vector<ProfiledCase>& cases) {
  std::map<std::string, std::set<std::string>> names;  // of each function
  for (const ProfiledCase& c : cases) names[c.implementation].insert(c.name);
  for (ProfiledCase& c : cases) {
    if (names[c.implementation].size() > 1)
      c.implementation = with_template_arguments(c.name, c.implementation);
  }
}

}  // namespace

std::vector<ProfiledCase> profiled_cases(const std::vector<NcuKernel>& kernels) {
  std::map<Key, std::vector<const NcuKernel*>> launches;
  std::vector<Key> order;  // of the first launch of each
  for (const NcuKernel& kernel : kernels) {
    const Key key{kernel.process, kernel.device, kernel.name, kernel.blocks, kernel.threads};
    std::vector<const NcuKernel*>& own = launches[key];
    if (own.empty()) order.push_back(key);
    own.push_back(&kernel);
  }
  std::vector<ProfiledCase> cases;
  for (const Key& key : order) cases.push_back(case_of(launches[key]));
  if (std::all_of(cases.begin(), cases.end(), [](const auto& c) { return c.seconds.empty(); })) {
    throw InvalidArgument(
        "the table tells no kernel's time: it needs the metric gpu__time_duration.sum, or Duration of the "
        "details "
        "page (section SpeedOfLight)");
  }
  name_apart(cases);
  return cases;
}

ProfiledGpu gpu_of(const std::vector<NcuKernel>& kernels, const std::vector<ProfiledCase>& cases,
                   const std::string& asked, const std::vector<Machine>& machines) {
  std::set<std::string> capabilities, names;
  double count = report::kMissing;
  for (const ProfiledCase& c : cases) {
    if (!c.cc.empty()) capabilities.insert(c.cc);
    count = std::fmax(count, c.counters.multiprocessors);
  }
  for (const NcuKernel& kernel : kernels) {
    const auto found = kernel.metrics.find("device__attribute_display_name");
    if (found != kernel.metrics.end() && !is_missing(found->second.front().value))
      names.insert(found->second.front().value);
  }
  if (capabilities.size() > 1 || names.size() > 1) {
    const std::set<std::string>& kinds = names.size() > 1 ? names : capabilities;
    throw InvalidArgument(
        fmt::format("the table is of two kinds of GPU, {} and {}: print each by itself, with ncu --devices",
                    *kinds.begin(), *kinds.rbegin()));
  }
  ProfiledGpu gpu{.name = !asked.empty() ? asked : names.empty() ? "" : *names.begin()};
  if (!capabilities.empty()) {
    const double capability = number_from(*capabilities.begin(), DecimalMark::point).value_or(0);
    gpu.compute_capability =
        capability > 0 && capability < 100 ? static_cast<int>(std::lround(10 * capability)) : 0;
  }
  gpu.machine = find_machine(gpu.name, machines);
  if (gpu.machine) {
    const int own = gpu.machine->compute_capability;
    if (gpu.compute_capability != 0 && gpu.compute_capability != own) {
      throw InvalidArgument(fmt::format("the table is of a GPU of compute capability {}, and {} has {}.{}",
                                        *capabilities.begin(), gpu.name, own / 10, own % 10));
    }
    gpu.compute_capability = own;
    gpu.multiprocessors = gpu.machine->multiprocessors;
    return gpu;
  }
  const int multiprocessors = count >= 1 && count < 4096 ? static_cast<int>(std::lround(count)) : 0;
  gpu.multiprocessors = multiprocessors_of(gpu.compute_capability, multiprocessors);
  if (gpu.multiprocessors) {
    if (gpu.name.empty())
      gpu.name = fmt::format("GPU of compute capability {} with {} multiprocessors", *capabilities.begin(),
                             multiprocessors);
    return gpu;
  }
  std::vector<std::string> known;
  for (const Machine& machine : machines) known.push_back(machine.devices.front());
  throw InvalidArgument(
      gpu.name.empty()
          ? fmt::format("the table does not tell its GPU: name it with --gpu (data/machines describes {})",
                        list_words(known))
          : fmt::format(
                "no file of data/machines describes the GPU '{}'{}, and the table does not tell its compute "
                "capability (column CC) and number of multiprocessors (launch__sm_count or # SMs)",
                gpu.name, suggestion(gpu.name, known)));
}

}  // namespace splash::analysis
