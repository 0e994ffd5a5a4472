#include "experiments/runner/diagnoses.h"

#include <algorithm>

#include "analysis/diagnosis.h"
#include "analysis/machine.h"
#include "experiments/runner/project_root.h"

namespace splash::experiments {

void add_diagnoses(report::Report& report) {
  if (report.ceilings.empty() || report.find("executed_flops") == nullptr) return;
  const std::vector<analysis::Machine> machines = analysis::read_machines(machines_folder());
  const auto machine = std::find_if(machines.begin(), machines.end(), [&](const analysis::Machine& m) {
    return std::find(m.devices.begin(), m.devices.end(), report.provenance.gpu) != m.devices.end();
  });
  if (machine == machines.end() || analysis::kernel_cases(report).empty()) return;
  analysis::write_diagnoses(report, machine->multiprocessors);
}

}  // namespace splash::experiments
