#include "experiments/kinds/support/counted_kernel.h"

#include <algorithm>
#include <limits>

#include "analysis/cache/simulate.h"
#include "analysis/cache/simulated.h"
#include "core/error.h"
#include "experiments/kinds/support/gpu_problem.h"
#include "experiments/kinds/support/planned_kernel.h"
#include "gpu/engine/work.h"

namespace splash::experiments {
namespace {

using namespace analysis;

constexpr int64_t kKeptForEachBlock = 1024;  // bytes of shared memory, by the driver
constexpr int64_t kMostKeys = int64_t{1} << 24;

constexpr double kMostSimulatedLines = 6e8;  // some forty seconds; cases with more lines are not simulated

// A variant planned for a GPU. `registers` and `static_shared` belong to the largest kernel.
struct PlannedVariant {
  const gpu::Variant& variant;
  const Parameters& parameters;
  const AttentionSpec& spec;  // made of the parameters
  const gpu::Plan& plan;
  int registers = 0;
  int64_t static_shared = 0;
};

// Finds how many pieces of a kernel run at the same time, and how much L1 its blocks leave. Registers and
// static shared memory are known only for the largest kernel. If the plan does not name a kernel, all its
// pieces run at the same time.
KernelRun run_of(const KernelTrace& trace, const PlannedVariant& planned, const Machine& machine) {
  KernelRun run{.trace = trace, .at_once = std::max<int64_t>(1, trace.blocks)};
  const auto& kernels = planned.plan.kernels;
  const auto kernel =
      std::find_if(kernels.begin(), kernels.end(), [&](const auto& k) { return k.name == trace.kernel; });
  if (kernel == kernels.end()) return run;
  const bool main = kernel->name == main_kernel(planned.plan).name;
  const KernelUse use{.blocks = kernel->blocks,
                      .threads = kernel->threads,
                      .registers = main ? planned.registers : 0,
                      .shared_bytes = kernel->shared_bytes + (main ? planned.static_shared : 0)};
  const int each = std::max(1, occupancy_of(machine.multiprocessors, use).blocks);
  const int64_t resident = std::min(kernel->blocks, int64_t{each} * machine.multiprocessors.count);
  run.at_once = std::max<int64_t>(1, resident / trace.cluster);
  run.l1_bytes = std::max<int64_t>(0, machine.l1_bytes - each * (use.shared_bytes + kKeptForEachBlock));
  return run;
}

// The working set of the kernel whose full wave touches most.
WorkingSet largest_working_set(const std::vector<KernelTrace>& traces, const PlannedVariant& planned,
                               const Machine& machine) {
  WorkingSet largest;
  for (const KernelTrace& trace : traces) {
    const WorkingSet set = working_set(run_of(trace, planned, machine));
    if (set.wave > largest.wave) largest = set;
  }
  return largest;
}

// Whether a full wave's keys would stay in L2 if there were `keys` of them (and as many queries, in a square
// problem).
bool l2_holds(const PlannedVariant& planned, const Machine& machine, int64_t keys) {
  Parameters parameters = planned.parameters;
  if (get_integer(parameters, "q_len") == get_integer(parameters, "kv_len")) parameters["q_len"] = keys;
  parameters["kv_len"] = keys;
  const AttentionSpec spec = problem_spec(parameters);
  const Dtype dtype = problem_dtype(parameters);
  try {
    const gpu::Plan plan = planned.variant.plan(spec, dtype, device_of(machine));
    const PlannedVariant longer{planned.variant,   parameters,           spec, plan,
                                planned.registers, planned.static_shared};
    return fits(largest_working_set(planned.variant.trace(spec, dtype, plan), longer, machine), machine.l2);
  } catch (const Unsupported&) {
    return false;
  }
}

// The most keys that stay in L2, to a sixteenth.
double longest_in_l2(const PlannedVariant& planned, const Machine& machine) {
  if (get_text(planned.parameters, "selection") == "shared_keys")
    return std::numeric_limits<double>::quiet_NaN();  // the lists decide, not the length
  constexpr int64_t kLeast = 16;
  int64_t holds = 0;
  for (int64_t keys = kLeast; keys <= kMostKeys && l2_holds(planned, machine, keys); keys *= 2) holds = keys;
  for (int64_t step = holds / 2; step >= std::max<int64_t>(1, holds / 16); step /= 2) {
    if (l2_holds(planned, machine, holds + step)) holds += step;
  }
  return static_cast<double>(holds);
}

// Nothing if there would be too many lines.
std::optional<SimulatedCase> simulate_variant(const PlannedVariant& planned, const gpu::Work& work,
                                              const Machine& machine) {
  if (work.l2_bytes / kLineBytes > kMostSimulatedLines) return std::nullopt;
  const auto traces = planned.variant.trace(planned.spec, problem_dtype(planned.parameters), planned.plan);
  std::vector<KernelRun> runs;
  for (const KernelTrace& trace : traces) runs.push_back(run_of(trace, planned, machine));
  const CallTraffic traffic = simulate(runs, machine.multiprocessors.count, machine.l2);
  const WorkingSet set = largest_working_set(traces, planned, machine);
  const MemoryTraffic& memory = traffic.memory;
  return SimulatedCase{.l1_hit_bytes = static_cast<double>(traffic.l1_hits),
                       .l2_bytes = static_cast<double>(memory.asked),
                       .l2_hit_bytes = static_cast<double>(memory.hits),
                       .dram_read_bytes = static_cast<double>(memory.dram_read),
                       .dram_write_bytes = static_cast<double>(memory.dram_written),
                       .dram_apart_bytes = static_cast<double>(traffic.dram_apart),
                       .block_working_set = static_cast<double>(set.block),
                       .wave_working_set = static_cast<double>(set.wave),
                       .l2_holds_keys = longest_in_l2(planned, machine)};
}

// Computes the rate from numbers["time_median"].
void add_work(const gpu::Work& work, std::map<std::string, double>& numbers) {
  numbers["useful_flops"] = work.useful_flops;
  numbers["executed_flops"] = work.executed_flops;
  numbers["executed_rate"] = work.executed_flops / numbers["time_median"];
  numbers["dram_bytes_counted"] = work.dram_bytes;
  numbers["l2_bytes_counted"] = work.l2_bytes;
  numbers["exponentials"] = work.exponentials;
}

// Fills the columns with NaN if nothing was simulated.
void add_simulated(const std::optional<SimulatedCase>& simulated, std::map<std::string, double>& numbers) {
  for (const SimulatedColumn& column : simulated_columns())
    numbers[column.info.name] =
        simulated ? *simulated.*column.member : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

gpu::DeviceInfo device_of(const Machine& machine) {
  gpu::DeviceInfo device;
  device.name = machine.devices.empty() ? machine.name : machine.devices.front();  // as the GPU reports it
  device.compute_major = machine.compute_capability / 10;
  device.compute_minor = machine.compute_capability % 10;
  device.multiprocessors = machine.multiprocessors.count;
  device.l2_bytes = machine.l2.bytes;
  device.shared_bytes_per_multiprocessor = machine.multiprocessors.shared_bytes;
  device.shared_bytes_per_block = machine.multiprocessors.shared_bytes - kKeptForEachBlock;
  return device;
}

double floor_seconds(const gpu::Work& work, const std::string& unit, double seconds,
                     const std::vector<report::Ceiling>& ceilings) {
  KernelCase kernel;
  kernel.flops = work.executed_flops;
  kernel.l2_bytes = work.l2_bytes;
  kernel.dram_bytes = work.dram_bytes;
  kernel.unit = unit;
  return floors_of(kernel, ceilings).within(seconds).highest();
}

CountedForward add_counts(const gpu::Variant& variant, const Parameters& parameters,
                          const gpu::DeviceInfo& device, const std::optional<Machine>& machine,
                          std::map<std::string, double>& numbers) {
  const AttentionSpec spec = problem_spec(parameters);
  const Dtype dtype = problem_dtype(parameters);
  const gpu::Plan plan = variant.plan(spec, dtype, device);
  const gpu::Work work = gpu::count_work(variant, spec, dtype, plan, device);
  add_work(work, numbers);
  numbers["instruction_q"] = instruction_q(plan);
  const auto registers = static_cast<int>(numbers.at("registers"));
  const int64_t static_shared =
      std::max<int64_t>(0, static_cast<int64_t>(numbers.at("shared_bytes")) - main_kernel(plan).shared_bytes);
  add_simulated(
      machine ? simulate_variant({variant, parameters, spec, plan, registers, static_shared}, work, *machine)
              : std::nullopt,
      numbers);
  return {work, product_unit(plan, dtype), planned_launches(plan, work)};
}

}  // namespace splash::experiments
