#include "analysis/recorded_machine.h"

#include <doctest/doctest.h>

#include "analysis/tests/example_kernels.h"

using namespace splash::analysis;
using splash::analysis::testing::message_of;

namespace {

splash::report::Report report_of(const std::string& gpu, int64_t capability, int64_t multiprocessors) {
  splash::report::Report report;
  report.provenance.gpu = gpu;
  report.provenance.compute_capability = capability;
  report.provenance.multiprocessors = multiprocessors;
  report.provenance.l2_bytes = int64_t{50} << 20;
  return report;
}

const std::vector<Machine>& machines() {
  static const std::vector<Machine> known = read_machines(SPLASH_SOURCE_DIR "/data/machines");
  return known;
}

std::string refusal_of(const splash::report::Report& report) {
  return message_of([&] { machine_of(report, machines()); });
}

}  // namespace

TEST_CASE("a file of data/machines goes before what a report tells of its GPU") {
  const Machine machine = machine_of(report_of("NVIDIA H200", 80, 7), machines());
  CHECK(machine.multiprocessors.count == 132);
  CHECK(!machine.peaks.empty());
  CHECK(machine_of(report_of("NVIDIA H200; NVIDIA H200", 0, 0), machines()).name == "NVIDIA H200 SXM");
}

TEST_CASE("of a GPU that no file describes, a report tells the multiprocessors and L2") {
  const Machine machine = machine_of(report_of("Voodoo; Voodoo", 89, 40), machines());
  CHECK(machine.name == "Voodoo");
  CHECK(machine.compute_capability == 89);
  CHECK(machine.multiprocessors.count == 40);
  CHECK(machine.multiprocessors.warps == 48);
  CHECK(machine.multiprocessors.shared_bytes == 102400);
  CHECK(machine.l2.bytes == int64_t{50} << 20);
  CHECK(machine.peaks.empty());
}

TEST_CASE("what is missing of a GPU that no file describes is said") {
  CHECK(!find_machine(report_of("Voodoo", 0, 0), machines()));
  CHECK(refusal_of(report_of("Voodoo", 0, 0)) ==
        "no file of data/machines describes the GPU 'Voodoo', and the report does not tell its "
        "multiprocessors: describe it (splash new machine)");
  CHECK(refusal_of(report_of("Voodoo", 131, 40)) ==
        "no file of data/machines describes the GPU 'Voodoo', and what a multiprocessor of its compute "
        "capability 13.1 holds is not known: describe it (splash new machine)");
  for (const int64_t impossible : {int64_t{-1}, int64_t{1} << 40}) {
    CHECK(refusal_of(report_of("Voodoo", 90, impossible)) == refusal_of(report_of("Voodoo", 0, 0)));
    CHECK(refusal_of(report_of("Voodoo", impossible, 40)) == refusal_of(report_of("Voodoo", 0, 0)));
  }
}
