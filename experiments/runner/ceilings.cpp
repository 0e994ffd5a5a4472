#include "experiments/runner/ceilings.h"

#include <algorithm>
#include <map>
#include <mutex>

#include <fmt/format.h>

#include "analysis/machine.h"
#include "analysis/statistics.h"
#include "experiments/runner/narrate.h"
#include "experiments/runner/project_root.h"
#include "gpu/device.h"

namespace splash::experiments {
namespace {

// Peaks of the machine that the driver calls `device`. If no file describes it there are none, and a message
// says so.
analysis::Machine machine_with_peaks(const std::string& device) {
  const std::string folder = machines_folder();
  if (auto machine = analysis::find_machine(device, analysis::read_machines(folder)))
    return *std::move(machine);
  narrate("no file in {} describes '{}': its ceilings stand without a data sheet's", folder, device);
  return {};
}

}  // namespace

report::Ceiling summarise(const gpu::MeasuredCeiling& measured, double datasheet) {
  const auto interval = analysis::median_interval(measured.samples);
  report::Ceiling ceiling{.name = measured.name,
                          .dtype = measured.dtype,
                          .units = measured.units,
                          .method = measured.method,
                          .measured = analysis::median(measured.samples),
                          .low = interval.low,
                          .high = interval.high,
                          .datasheet = datasheet};
  if (!measured.samples.empty()) {
    ceiling.method += fmt::format("; median of {}, multiprocessors at {:.0f} MHz", measured.samples.size(),
                                  1e-6 * measured.clock_hz);
  }
  return ceiling;
}

const std::vector<report::Ceiling>& measured_ceilings(int device) {
  static std::mutex mutex;  // several cases are completed at the same time
  static std::map<int, std::vector<report::Ceiling>> known;
  const std::lock_guard lock(mutex);
  const auto found = known.find(device);
  if (found != known.end()) return found->second;
  gpu::require_device(device);
  const analysis::Machine machine =
      machine_with_peaks(gpu::list_devices().at(static_cast<std::size_t>(device)).name);
  std::vector<report::Ceiling> ceilings;
  for (const gpu::MeasuredCeiling& ceiling : gpu::measure_ceilings(device))
    ceilings.push_back(summarise(ceiling, machine.peak(ceiling.name, ceiling.dtype)));
  return known[device] = std::move(ceilings);
}

report::Ceiling summarise(const cpu_ref::MeasuredCeiling& measured) {
  report::Ceiling ceiling{.name = measured.name,
                          .dtype = measured.dtype,
                          .units = measured.units,
                          .method = measured.method,
                          .measured = report::kMissing,
                          .low = report::kMissing,
                          .high = report::kMissing,
                          .datasheet = report::kMissing};
  if (measured.samples.empty()) return ceiling;
  ceiling.measured = ceiling.high = *std::max_element(measured.samples.begin(), measured.samples.end());
  ceiling.low = analysis::median(measured.samples);
  ceiling.method += fmt::format("; the fastest of {} samples, from their median on", measured.samples.size());
  return ceiling;
}

const std::vector<report::Ceiling>& cpu_ceilings() {
  static const std::vector<report::Ceiling> known = [] {
    std::vector<report::Ceiling> ceilings;
    for (const cpu_ref::MeasuredCeiling& ceiling : cpu_ref::measure_ceilings())
      ceilings.push_back(summarise(ceiling));
    return ceilings;
  }();
  return known;
}

}  // namespace splash::experiments
