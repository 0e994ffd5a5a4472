#include "experiments/kinds/support/counted_backward.h"

#include <cmath>

#include "analysis/launches.h"
#include "experiments/kinds/support/gpu_problem.h"
#include "experiments/kinds/support/planned_kernel.h"
#include "gpu/engine/work.h"
#include "gpu/entmax/backward/backward.h"
#include "gpu/entmax/backward/work.h"

namespace splash::experiments {
namespace {

using namespace analysis;

constexpr const char* kBackwardUnit = "float32";

Launch launch_of(const gpu::entmax::BackwardKernel& kernel) {
  return {.kernel = kernel.launch.name,
          .use = {.blocks = kernel.launch.blocks,
                  .threads = kernel.launch.threads,
                  .registers = 0,
                  .shared_bytes = kernel.launch.shared_bytes},
          .flops = kernel.work.executed_flops,
          .l2_bytes = kernel.work.l2_bytes,
          .dram_bytes = kernel.work.dram_bytes,
          .unit = kBackwardUnit};
}

void add_plan_of(const gpu::Plan& plan, std::size_t launches, CaseResult& result) {
  const gpu::KernelLaunch& main = main_kernel(plan);
  auto& numbers = result.numbers;
  numbers["tile_q"] = static_cast<double>(plan.tile.q);
  numbers["tile_k"] = static_cast<double>(plan.tile.k);
  numbers["stages"] = plan.tile.stages;
  numbers["instruction_q"] = instruction_q(plan);
  numbers["launches"] = static_cast<double>(launches);
  numbers["blocks"] = static_cast<double>(main.blocks);
  numbers["threads"] = main.threads;
  numbers["shared_bytes"] = static_cast<double>(main.shared_bytes);
  result.texts["kernel"] = main.name;
  result.texts["math_unit"] = gpu::to_string(plan.unit);
}

}  // namespace

bool add_training_counts(const gpu::Variant& variant, const Parameters& parameters,
                         const gpu::DeviceInfo& device, const std::vector<report::Ceiling>& ceilings,
                         CaseResult& result) {
  auto& numbers = result.numbers;
  const auto known = [&](const char* name) { return numbers.contains(name) && numbers.at(name) > 0; };
  if (!variant.backward || !known("time_median") || !known("support_mean") ||
      numbers.at("support_mean") > kMostCountedSupport)
    return false;
  const AttentionSpec spec = problem_spec(parameters);
  const Dtype dtype = problem_dtype(parameters);
  const gpu::Plan plan = variant.plan(spec, dtype, device);
  const gpu::Work forward = gpu::count_work(variant, spec, dtype, plan, device);
  const double entries = std::round(numbers.at("support_mean") * static_cast<double>(spec.shape.rows()));
  KernelCase call;  // in the form that analysis takes
  call.unit = product_unit(plan, dtype);
  call.flops = forward.executed_flops;
  call.l2_bytes = forward.l2_bytes;
  call.dram_bytes = forward.dram_bytes;
  call.all = planned_launches(plan, forward);
  const bool dense = spec.shape.head_dim <= gpu::entmax::kMostUnstoredHeadDim;
  for (const auto& kernel :
       gpu::entmax::backward_kernels(spec, dtype, static_cast<int64_t>(entries), device, dense)) {
    call.all.push_back(launch_of(kernel));
    call.flops += kernel.work.executed_flops;
    call.l2_bytes += kernel.work.l2_bytes;
    call.dram_bytes += kernel.work.dram_bytes;
  }
  const double seconds = numbers.at("time_median");
  numbers["useful_flops"] =
      forward.useful_flops + gpu::entmax::backward_flops(entries, static_cast<double>(spec.shape.head_dim));
  numbers["executed_flops"] = call.flops;
  numbers["executed_rate"] = call.flops / seconds;
  numbers["l2_bytes_counted"] = call.l2_bytes;
  numbers["dram_bytes_counted"] = call.dram_bytes;
  numbers["exponentials"] = forward.exponentials;
  numbers["floor_time"] = floors_of(call, ceilings).within(seconds).highest();
  numbers["roof_share"] = numbers["floor_time"] / seconds;
  result.texts[kLaunchesColumn] = launches_text(call.all);
  add_plan_of(plan, call.all.size(), result);
  return true;
}

}  // namespace splash::experiments
