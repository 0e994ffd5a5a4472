// The models of the lab against what CUDA said on the device: every kernel of the recorded reports.

#include <doctest/doctest.h>

#include "analysis/report/io.h"
#include "analysis/roofline.h"
#include "experiments/runner/machine.h"

using namespace splash;
using namespace splash::analysis;

TEST_CASE("occupancy of every recorded kernel is what CUDA's calculator said where it ran") {
  const Report report = read_report(SPLASH_SOURCE_DIR "/data/reports/ladders-h200.h5");
  const auto machine = experiments::machine_of(
      report.provenance.gpu, experiments::read_machines(SPLASH_SOURCE_DIR "/data/machines"));
  const auto cases = kernel_cases(report);
  REQUIRE(cases.size() > 100);
  for (const KernelCase& kernel : cases) {
    CAPTURE(kernel.implementation);
    CAPTURE(kernel.problem);
    CAPTURE(kernel.use.threads);
    CAPTURE(kernel.use.registers);
    CAPTURE(kernel.use.shared_bytes);
    CHECK(occupancy_of(machine.multiprocessors, kernel.use).blocks == kernel.resident_blocks);
  }
}

TEST_CASE("no recorded kernel is faster than its products at the measured ceiling") {
  const Report report = read_report(SPLASH_SOURCE_DIR "/data/reports/ladders-h200.h5");
  for (const KernelCase& kernel : kernel_cases(report)) {
    CAPTURE(kernel.implementation);
    CAPTURE(kernel.problem);
    CHECK(floors_of(kernel, report.ceilings).products <= kernel.seconds);
  }
}
