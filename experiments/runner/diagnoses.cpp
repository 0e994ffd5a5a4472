#include "experiments/runner/diagnoses.h"

#include "analysis/diagnosis.h"
#include "analysis/recorded_machine.h"
#include "experiments/runner/project_root.h"

namespace splash::experiments {

void add_diagnoses(report::Report& report) {
  if (report.ceilings.empty() || report.find("executed_flops") == nullptr) return;
  const auto machine = analysis::find_machine(report, analysis::read_machines(machines_folder()));
  if (!machine || analysis::kernel_cases(report).empty()) return;
  analysis::write_diagnoses(report, machine->multiprocessors);
}

}  // namespace splash::experiments
