// The models of the lab against what CUDA said on the device: every kernel of the recorded reports.

#include <algorithm>
#include <cmath>

#include <doctest/doctest.h>

#include "analysis/diagnosis.h"
#include "analysis/report/io.h"
#include "analysis/roofline.h"
#include "analysis/what_if.h"
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

TEST_CASE("the questions of documents 000 and 003 are settled from the recorded ladders") {
  const Report report = read_report(SPLASH_SOURCE_DIR "/data/reports/ladders-h200.h5");
  const auto machine = experiments::machine_of(
      report.provenance.gpu, experiments::read_machines(SPLASH_SOURCE_DIR "/data/machines"));
  const auto verdict = [&](const std::string& implementation, const std::string& problem) {
    for (const KernelCase& kernel : kernel_cases(report)) {
      if (kernel.implementation == implementation && kernel.problem.starts_with(problem))
        return diagnose(kernel, machine.multiprocessors, report.ceilings).findings.front().cause;
    }
    FAIL("not recorded: ", implementation, ", ", problem);
    return Cause::inside;
  };
  // 003: cache, bandwidth or parallelism? With 64 heads, which fill the GPU, the same kernel is bound by L2.
  CHECK(verdict("large_dims/0-one-query", "float32, 1 x 4 heads, 16 x 16, d 8192") == Cause::parallelism);
  CHECK(verdict("large_dims/0-one-query", "float32, 1 x 64 heads, 16 x 16, d 8192") == Cause::l2);
  // 000: neither bandwidth nor products nor too few blocks.
  CHECK(verdict("splash/0-three-launches", "float32, 2 x 8 heads, 2048 x 2048, d 64") == Cause::inside);
  CHECK(verdict("wmma/10-warp-specialised", "bfloat16, 1 x 16 heads, 16384 x 16384, d 128, causal") ==
        Cause::products);
}

TEST_CASE("no recorded kernel is faster than its products at the measured ceiling") {
  const Report report = read_report(SPLASH_SOURCE_DIR "/data/reports/ladders-h200.h5");
  for (const KernelCase& kernel : kernel_cases(report)) {
    CAPTURE(kernel.implementation);
    CAPTURE(kernel.problem);
    CHECK(floors_of(kernel, report.ceilings).products <= kernel.seconds);
  }
}

TEST_CASE("a recorded kernel's time is predicted from other problems of it, half of them within 25 %") {
  const Report report = read_report(SPLASH_SOURCE_DIR "/data/reports/ladders-h200.h5");
  const auto machine = experiments::machine_of(
      report.provenance.gpu, experiments::read_machines(SPLASH_SOURCE_DIR "/data/machines"));
  std::vector<double> errors;
  for (const double ratio : held_out_ratios(kernel_cases(report), machine.multiprocessors, report.ceilings))
    errors.push_back(std::abs(1 / ratio - 1));
  REQUIRE(errors.size() > 200);
  std::sort(errors.begin(), errors.end());
  CAPTURE(errors[errors.size() * 8 / 10]);
  CHECK(errors[errors.size() / 2] < 0.25);
}
