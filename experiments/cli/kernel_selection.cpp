#include "experiments/cli/kernel_selection.h"

#include <set>

#include <fmt/format.h>

#include "analysis/recorded_machine.h"
#include "core/error.h"
#include "experiments/runner/narrate.h"
#include "experiments/runner/project_root.h"

namespace splash::cli {

void add_report(CLI::App& app, std::string& report) {
  app.add_option("report", report, "an HDF5 report with cases of the kind gpu-attention")
      ->required()
      ->type_name("REPORT");
}

void add_kernel_options(CLI::App& app, std::string& report, std::string& prefix) {
  add_report(app, report);
  app.add_option("--kernels", prefix, "only those whose id starts so")->type_name("PREFIX");
}

std::vector<analysis::KernelCase> selected_kernels(const report::Report& report, const std::string& prefix,
                                                   const std::string& case_id, analysis::Calls calls) {
  return chosen_kernels(analysis::kernel_cases(report, calls), prefix, case_id);
}

std::vector<analysis::KernelCase> chosen_kernels(std::vector<analysis::KernelCase> kernels,
                                                 const std::string& prefix, const std::string& case_id) {
  std::erase_if(kernels, [&](const auto& kernel) { return !kernel.implementation.starts_with(prefix); });
  std::set<std::string> seen;
  std::erase_if(kernels, [&](const auto& kernel) { return !seen.insert(kernel.case_id).second; });
  const bool some = !kernels.empty();
  std::erase_if(kernels, [&](const auto& kernel) { return !kernel.case_id.starts_with(case_id); });
  if (!kernels.empty()) return kernels;
  if (some)
    throw InvalidArgument(
        fmt::format("none of the chosen kernels is of a case whose id starts with '{}'", case_id));
  throw InvalidArgument(prefix.empty()
                            ? "the report has no kernel that was run"
                            : fmt::format("the report has no kernel whose id starts with '{}'", prefix));
}

analysis::Machine machine_of(const report::Report& report) {
  analysis::Machine machine =
      analysis::machine_of(report, analysis::read_machines(experiments::machines_folder()));
  // Of imported kernels `splash import` says it; they give no capability.
  if (machine.peaks.empty() && machine.compute_capability != 0) {
    experiments::narrate(
        "no file of data/machines describes {}: the report tells its {} multiprocessors of compute "
        "capability {}.{} and its ceilings; missing are a data sheet's peaks, which would check the ceilings "
        "and scale them to another GPU, and its caches, which would be simulated",
        machine.name, machine.multiprocessors.count, machine.compute_capability / 10,
        machine.compute_capability % 10);
  }
  return machine;
}

}  // namespace splash::cli
