#include "experiments/kinds/support/planned_kernel.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "core/error.h"
#include "core/workload.h"
#include "cpu_ref/entmax/solver.h"
#include "experiments/kinds/support/counted_kernel.h"
#include "experiments/kinds/support/gpu_file_problem.h"
#include "experiments/kinds/support/gpu_problem.h"
#include "experiments/runner/recorded.h"
#include "gpu/engine/work.h"

namespace splash::experiments {
namespace {

// Stands for the alphas of a file's heads, which no report holds. What is counted depends only on whether an
// alpha is 1.5 or 2, whose powers are products.
constexpr double kAlphaOfHeads = 1.4;

bool has_alpha_of_file(const report::Report& report, int64_t row) {
  const report::Column* const column = report.find(kAlphaOfFile);
  return column != nullptr && !column->info.is_text && column->numbers.at(static_cast<size_t>(row)) == 1;
}

}  // namespace

const gpu::KernelLaunch& main_kernel(const gpu::Plan& plan) {
  return *std::max_element(plan.kernels.begin(), plan.kernels.end(), [](const auto& a, const auto& b) {
    return a.blocks * a.threads < b.blocks * b.threads;
  });
}

std::vector<analysis::Launch> planned_launches(const gpu::Plan& plan, const gpu::Work& work) {
  std::vector<analysis::Launch> launches;
  if (plan.kernels.size() < 2) return launches;
  for (const gpu::KernelLaunch& kernel : plan.kernels) {
    analysis::Launch launch{.kernel = kernel.name,
                            .use = {.blocks = kernel.blocks,
                                    .threads = kernel.threads,
                                    .registers = 0,
                                    .shared_bytes = kernel.shared_bytes}};
    for (const gpu::KernelWork& traced : work.kernels) {
      if (traced.kernel != kernel.name) continue;
      launch.flops += traced.executed_flops;
      launch.l2_bytes += traced.l2_bytes;
      launch.dram_bytes += traced.dram_bytes;
      launch.exponentials += traced.exponentials;
    }
    launches.push_back(std::move(launch));
  }
  return launches;
}

std::vector<analysis::Launch> with_use(std::vector<analysis::Launch> counted,
                                       const std::vector<analysis::Launch>& recorded) {
  for (std::size_t i = 0; recorded.size() == counted.size() && i < counted.size(); ++i) {
    if (recorded[i].kernel == counted[i].kernel) counted[i].use = recorded[i].use;
  }
  return counted;
}

int instruction_q(const gpu::Plan& plan) {
  return plan.tile.instruction_q > 0 ? plan.tile.instruction_q
                                     : analysis::instruction_rows(gpu::to_string(plan.unit));
}

std::string product_unit(const gpu::Plan& plan, Dtype dtype) {
  if (plan.unit == gpu::MathUnit::f16 && dtype != Dtype::f16) return std::string(to_string(Dtype::bf16));
  return gpu::to_string(plan.unit);
}

analysis::KernelCase planned_kernel(const std::string& variant_id, const Parameters& parameters,
                                    const analysis::Machine& machine) {
  check_problem(parameters);
  const gpu::Variant& variant = gpu::find_variant(variant_id);
  const AttentionSpec spec = problem_spec(parameters);
  const Dtype dtype = problem_dtype(parameters);
  const gpu::DeviceInfo device = device_of(machine);
  gpu::require_supported(variant, spec, dtype, device);
  const gpu::Plan plan = variant.plan(spec, dtype, device);
  const gpu::Work work = gpu::count_work(variant, spec, dtype, plan, device);
  const gpu::KernelLaunch& main = main_kernel(plan);
  analysis::KernelCase kernel;
  kernel.implementation = variant_id;
  kernel.shape = spec.shape;
  kernel.dtype = dtype;
  kernel.causal = spec.mask.causal;
  kernel.window = spec.mask.window;
  kernel.tile_q = plan.tile.q;
  kernel.tile_k = plan.tile.k;
  kernel.stages = plan.tile.stages;
  kernel.flops = work.executed_flops;
  kernel.useful_flops = work.useful_flops;
  kernel.dram_bytes = work.dram_bytes;
  kernel.l2_bytes = work.l2_bytes;
  kernel.exponentials = work.exponentials;
  kernel.instruction_q = instruction_q(plan);
  kernel.unit = product_unit(plan, dtype);
  analysis::count_tensors(kernel);
  kernel.kernel = main.name;
  kernel.launches = static_cast<int>(plan.kernels.size());
  kernel.use = {
      .blocks = main.blocks, .threads = main.threads, .registers = 0, .shared_bytes = main.shared_bytes};
  kernel.all = planned_launches(plan, work);
  return kernel;
}

double sampled_support(const Parameters& p) {
  const AttentionSpec spec = problem_spec(p);
  const std::string& mask = get_text(p, "mask");
  const bool is_known = get_text(p, "normalizer") == "entmax" && get_text(p, "selection") == "all" &&
                        (mask == "none" || mask == "causal" || mask == "window");
  if (!is_known) return std::numeric_limits<double>::quiet_NaN();
  constexpr int64_t kRows = 16;
  double support = 0;
  for (int64_t i = 0; i < kRows; ++i) {
    const int64_t query = (2 * i + 1) * spec.shape.q_len / (2 * kRows);
    int64_t keys = spec.shape.kv_len;
    if (spec.mask.causal) keys = std::max<int64_t>(1, keys - spec.shape.q_len + query + 1);
    if (spec.mask.window > 0) keys = std::min(keys, spec.mask.window);
    const Workload rows{.seed = static_cast<uint64_t>(i) + 1,
                        .query_variance = get_number(p, "query_variance")};
    support += static_cast<double>(
        cpu_ref::entmax(make_score_row(rows, keys), get_number(p, "alpha"), cpu_ref::Solver::halley_bisection)
            .support);
  }
  return support / kRows;
}

Parameters parameters_of(const report::Report& report, int64_t row) {
  std::vector<ParameterInfo> declared;
  Parameters defaults;
  for (ParameterInfo& info : problem_parameters()) {
    if (is_of_one_mask(info.name) && report.find(info.name) == nullptr)
      defaults[info.name] = info.default_value;
    else
      declared.push_back(std::move(info));
  }
  Parameters parameters = recorded_parameters(report, row, declared, "gpu-attention");
  parameters.merge(defaults);
  if (has_alpha_of_file(report, row)) parameters["alpha"] = kAlphaOfHeads;
  return parameters;
}

}  // namespace splash::experiments
