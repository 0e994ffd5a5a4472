#include "experiments/kinds/support/recount.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "analysis/cache/simulated.h"
#include "analysis/launches.h"
#include "analysis/roofline.h"
#include "core/error.h"
#include "core/parallel.h"
#include "experiments/kinds/support/counted_backward.h"
#include "experiments/kinds/support/counted_kernel.h"
#include "experiments/kinds/support/gpu_attention_columns.h"
#include "experiments/kinds/support/gpu_problem.h"
#include "experiments/kinds/support/planned_kernel.h"
#include "experiments/runner/project_root.h"
#include "gpu/engine/work.h"

namespace splash::experiments {
namespace {

using namespace analysis;

// Inserts missing simulated columns after the counted ones, filled with NaN.
void add_simulated_columns(report::Report& report) {
  auto place = std::find_if(report.results.begin(), report.results.end(), [](const report::Column& column) {
    return column.info.name == "l2_bytes_counted";
  });
  for (const SimulatedColumn& simulated : simulated_columns()) {
    if (report.find(simulated.info.name) != nullptr) continue;
    report::Column column{.info = simulated.info};
    column.numbers.resize(static_cast<std::size_t>(report.cases()), std::numeric_limits<double>::quiet_NaN());
    place = report.results.insert(place + 1, std::move(column));
  }
}

std::map<std::string, double> counted_of(const report::Report& report, const KernelCase& kernel,
                                         const Parameters& parameters, const Machine& machine, bool simulate,
                                         std::vector<Launch>& launches) {
  std::map<std::string, double> numbers{{"time_median", kernel.seconds},
                                        {"registers", kernel.use.registers},
                                        {"shared_bytes", static_cast<double>(kernel.use.shared_bytes)}};
  const CountedForward counted =
      add_counts(gpu::find_variant(kernel.implementation), parameters, device_of(machine),
                 simulate ? std::optional(machine) : std::nullopt, numbers);
  if (!simulate) {
    for (const SimulatedColumn& column : simulated_columns()) numbers.erase(column.info.name);
  }
  launches = with_use(counted.launches, kernel.all);
  numbers["floor_time"] = floor_seconds(counted.work, counted.unit, kernel.seconds, report.ceilings);
  numbers["roof_share"] = numbers["floor_time"] / kernel.seconds;
  return numbers;
}

// Recounts calls of forward and backward. Measured values stay; the rest is counted from the recorded
// support.
int64_t recount_training(report::Report& report, const std::string& prefix, const Machine& machine,
                         Recounted& counted, const std::function<void(const std::string& kernel)>& progress) {
  const auto at = [&](const char* name, std::size_t row) {
    const report::Column* column = report.find(name);
    return column == nullptr || column->info.is_text || column->width != 1 ? report::kMissing
                                                                           : column->numbers[row];
  };
  const report::Column *passes = report.find("pass"), *names = report.find("implementation");
  if (passes == nullptr || !passes->info.is_text) return 0;
  int64_t cases = 0;
  for (std::size_t row = 0; row < passes->texts.size(); ++row) {
    const std::string implementation = names->texts[row];
    if (passes->texts[row] != "forward_backward" || implementation.starts_with("torch-") ||
        !implementation.starts_with(prefix) || std::isnan(at("time_median", row)))
      continue;
    CaseResult result;
    result.numbers = {{"time_median", at("time_median", row)}, {"support_mean", at("support_mean", row)}};
    if (!add_training_counts(gpu::find_variant(implementation),
                             parameters_of(report, static_cast<int64_t>(row)), device_of(machine),
                             report.ceilings, result))
      continue;
    ++cases;
    counted.changed += at("executed_flops", row) == result.numbers.at("executed_flops") ? 0 : 1;
    for (const report::ColumnInfo& info : gpu_attention_columns()) {
      if (const auto number = result.numbers.find(info.name); number != result.numbers.end())
        report::column_of(report, info).numbers[row] = number->second;
      if (const auto text = result.texts.find(info.name); text != result.texts.end())
        report::column_of(report, info).texts[row] = text->second;
    }
    progress(fmt::format("{}, forward and backward", implementation));
  }
  return cases;
}

}  // namespace

Recounted recount(report::Report& report, const std::string& prefix,
                  const std::function<void(const std::string& kernel)>& progress, bool simulate) {
  std::vector<KernelCase> kernels = kernel_cases(report);
  std::erase_if(kernels,
                [&](const KernelCase& kernel) { return !kernel.implementation.starts_with(prefix); });
  for (const KernelCase& kernel : kernels)
    gpu::find_variant(kernel.implementation);  // throws before anything is counted
  const Machine machine = machine_of(report.provenance.gpu, read_machines(machines_folder()));
  add_simulated_columns(report);
  report::column_of(report, launches_column());
  for (const report::ColumnInfo& info : gpu_attention_columns()) {
    if (info.name == "exponentials" || info.name == "instruction_q") report::column_of(report, info);
  }
  if (report::Column* const floors = report.find("floor_time"))
    floors->info = floor_column();  // describe it as today
  std::atomic<int64_t> changed = 0;
  parallel_for(static_cast<int64_t>(kernels.size()), 1, [&](int64_t i) {
    const KernelCase& kernel = kernels[i];
    const auto row = static_cast<std::size_t>(kernel.row);
    const Parameters parameters = parameters_of(report, kernel.row);
    bool other = false;
    std::vector<Launch> launches;
    for (const auto& [name, value] : counted_of(report, kernel, parameters, machine, simulate, launches)) {
      report::Column* const column = report.find(name);
      if (column == nullptr || column->info.is_text || column->width != 1)
        throw ReportError(fmt::format("there is no column '{}'", name));
      other |= (name.ends_with("_flops") || name.ends_with("_counted")) && column->numbers[row] != value;
      column->numbers[row] = value;
    }
    if (!launches.empty()) {
      report.find(kLaunchesColumn)->texts[row] = launches_text(launches);
      if (report::Column* const count = report.find("launches"))
        count->numbers[row] = static_cast<double>(launches.size());
    }
    changed += other ? 1 : 0;
    progress(fmt::format("{}, {}", kernel.implementation, kernel.problem));
  });
  Recounted counted{static_cast<int64_t>(kernels.size()), changed};
  counted.cases += recount_training(report, prefix, machine, counted, progress);
  return counted;
}

}  // namespace splash::experiments
