// Diagnoses of profiled kernels: each cause of a kernel that has it by construction.

#include <doctest/doctest.h>

#include "analysis/diagnosis.h"
#include "analysis/profile_import.h"
#include "analysis/tests/example_kernels.h"
#include "analysis/tests/example_tables.h"

using namespace splash;
using namespace splash::analysis;
using namespace splash::analysis::testing;

namespace {

// Fills the GPU for two waves; 100 us at 1 GHz.
KernelCase profiled() {
  KernelCase kernel;
  kernel.profiled = true;
  kernel.implementation = kernel.kernel = "kernel";
  kernel.shape = {1, 1, 1, 1, 1, 1};
  kernel.unit = "float32";
  kernel.seconds = 100e-6;
  kernel.clock_hz = 1e9;
  kernel.flops = kernel.dram_bytes = kernel.l2_bytes = report::kMissing;
  kernel.use = {.blocks = 1600, .threads = 256, .registers = 32, .shared_bytes = 0};
  return kernel;
}

Diagnosis diagnosed(const KernelCase& kernel) {
  return diagnose(kernel, kMachine, datasheet_ceilings({}));
}

}  // namespace

TEST_CASE("the profiler's shares carry the verdict, the data sheet is not needed") {
  KernelCase kernel = profiled();
  kernel.seen = {.l1 = 0.25, .l2 = 0.4, .dram = 0.92, .multiprocessor = 0.12};
  const Diagnosis diagnosis = diagnosed(kernel);
  CHECK(diagnosis.findings.at(0).cause == Cause::dram);
  CHECK(diagnosis.findings[0].gain == doctest::Approx(1 / 0.92));
  CHECK(diagnosis.findings[0].sentence ==
        "DRAM is at 92 % of the profiler's peak: only less work for it helps");
  CHECK(diagnosis.not_known == std::vector<std::string>{"launches (a profiler's time leaves them out)"});
}

TEST_CASE("L1 that is busy is told with the accesses that make it so") {
  KernelCase kernel = profiled();
  kernel.seen = {.l1 = 0.96, .l2 = 0.2, .dram = 0.1, .multiprocessor = 0.3};
  kernel.bank_conflicts = 0.9;
  kernel.load_bytes = 4;
  const Finding finding = diagnosed(kernel).findings.at(0);
  CHECK(finding.cause == Cause::l1);
  CHECK(tells(finding.sentence, "of each 32-byte sector that threads load, 4 bytes are used"));
  CHECK(tells(finding.sentence, "90 % of the passes through shared memory are bank conflicts"));
  kernel.seen.shared = 0.95;  // and which part of L1 it is
  CHECK(diagnosed(kernel).findings.at(0).cause == Cause::shared_memory);
  CHECK(diagnosed(kernel).findings.size() == 1);
}

TEST_CASE("counts over a ceiling stand in for a share that the table does not tell") {
  KernelCase kernel = profiled();
  kernel.dram_bytes = kernel.dram_traffic = 0.8 * 1e12 * kernel.seconds;
  kernel.flops = 0.1 * 1e13 * kernel.seconds;
  kernel.instructions = 0.3 * 4 * 100 * 1e9 * kernel.seconds;
  kernel.shared_traffic = 0.2 * 128 * 100 * 1e9 * kernel.seconds;
  kernel.seen.l2 = 0.5;
  std::vector<report::Ceiling> ceilings = datasheet_ceilings({});
  for (report::Ceiling& ceiling : ceilings) {
    if (ceiling.name.starts_with("dram")) ceiling.datasheet = 1e12;
    if (ceiling.name == "fma") ceiling.datasheet = 1e13;
  }
  const Diagnosis diagnosis = diagnose(kernel, kMachine, ceilings);
  CHECK(diagnosis.findings.at(0).cause == Cause::dram);
  CHECK(tells(diagnosis.findings[0].sentence, "DRAM is at 80 % of the data sheet's figure, by counters"));
  const auto out = [&](const std::string& clause) {
    return std::find(diagnosis.ruled_out.begin(), diagnosis.ruled_out.end(), clause) !=
           diagnosis.ruled_out.end();
  };
  CHECK(out("the float32 units (10 % of the data sheet's figure, by counters)"));
  CHECK(out("issue slots (30 % of all there are, by counters)"));
  CHECK(out("shared memory (20 % of one pass a cycle, by counters)"));
  CHECK(out("L2 (50 % of the profiler's peak)"));
  for (report::Ceiling& ceiling : ceilings) ceiling.measured = ceiling.datasheet;
  CHECK(tells(diagnose(kernel, kMachine, ceilings).findings[0].sentence, "80 % of the measured ceiling"));
}

TEST_CASE("a busy unit of the multiprocessors is named where the table tells which it is") {
  KernelCase kernel = profiled();
  kernel.seen = {.l1 = 0.2, .l2 = 0.2, .dram = 0.1, .multiprocessor = 0.85};
  CHECK(diagnosed(kernel).findings.at(0).cause == Cause::pipes);
  kernel.seen.tensor = 0.84;
  CHECK(diagnosed(kernel).findings.at(0).cause == Cause::products);
  CHECK(tells(diagnosed(kernel).findings[0].sentence, "the tensor cores are at 84 %"));
  kernel.seen.tensor = 0.1;
  kernel.seen.issue = 0.85;
  CHECK(diagnosed(kernel).findings.at(0).cause == Cause::issue_slots);
}

TEST_CASE("where nothing is busy, the reasons for which warps wait tell latency from full queues") {
  KernelCase kernel = profiled();
  kernel.seen = {.l1 = 0.2, .l2 = 0.2, .dram = 0.3, .multiprocessor = 0.15};
  kernel.stalls.shares = {{"long_scoreboard", 0.7}, {"barrier", 0.15}, {"selected", 0.1}, {"wait", 0.05}};
  const Finding waits = diagnosed(kernel).findings.at(0);
  CHECK(waits.cause == Cause::latency);
  CHECK(tells(waits.sentence,
              "warps wait for data of L1, L2 or DRAM (long scoreboard, 70 % of their cycles), then at "
              "barriers of their block (barrier, 15 %)"));
  kernel.seen = {.dram = 0.3};
  kernel.stalls.shares = {{"mio_throttle", 0.7}, {"selected", 0.3}};
  CHECK(diagnosed(kernel).findings.at(0).cause == Cause::inside);
  kernel.stalls.shares = {};
  CHECK(diagnosed(kernel).findings.at(0).cause == Cause::inside);
  CHECK(tells(diagnosed(kernel).findings[0].sentence, "the reasons for which warps wait would tell"));
}

TEST_CASE("what cannot be is no verdict") {
  KernelCase kernel = profiled();
  kernel.seen = {.l1 = 0.2, .l2 = 0.7, .dram = 92.1, .multiprocessor = -0.1};
  const Diagnosis diagnosis = diagnosed(kernel);
  REQUIRE(diagnosis.findings.size() == 1);
  CHECK(diagnosis.findings[0].cause == Cause::l2);
  CHECK(std::count(diagnosis.not_known.begin(), diagnosis.not_known.end(),
                   "DRAM (9.21e+03 % of the profiler's peak, which cannot be)") == 1);
}

TEST_CASE("too few blocks and a table that tells next to nothing are said") {
  KernelCase few = profiled();
  few.use.blocks = 10;
  few.seen = {.l1 = 0.02, .l2 = 0.02, .dram = 0.01, .multiprocessor = 0.05};
  CHECK(diagnosed(few).findings.at(0).cause == Cause::parallelism);
  const Diagnosis nothing = diagnosed(profiled());
  CHECK(nothing.findings.at(0).cause == Cause::inside);
  CHECK(tells(nothing.findings[0].sentence, "the table tells of no unit how busy it is"));
}

TEST_CASE("stalls are read from whichever family of metrics a table has") {
  const auto stalls = [](const char* before, const char* after,
                         const std::vector<std::pair<const char*, const char*>>& values) {
    NcuKernel kernel;
    for (const auto& [reason, value] : values) {
      const std::string name = std::string(before) + reason + after;
      kernel.metrics[name] = {{.value = value, .unit = "inst", .mark = DecimalMark::point}};
    }
    return warp_stalls(kernel);
  };
  const WarpStalls ratio = stalls("smsp__average_warps_issue_stalled_", "_per_issue_active.ratio",
                                  {{"long_scoreboard", "6"}, {"barrier", "3"}, {"selected", "1"}});
  CHECK(ratio.shares.at("long_scoreboard") == doctest::Approx(0.6));
  CHECK_FALSE(ratio.whole);  // three of some twenty
  CHECK(tells(most_stalled(ratio), "60 % of the waits in the table"));
  const WarpStalls sampled =
      stalls("smsp__pcsamp_warps_issue_stalled_", "",
             {{"long_scoreboard", "30"}, {"long_scoreboard_not_issued", "29"}, {"wait", "10"}});
  CHECK(sampled.shares.size() == 2);
  CHECK(sampled.shares.at("wait") == doctest::Approx(0.25));
  CHECK(parse_stalls(stalls_text(ratio)).shares == ratio.shares);
  CHECK_THROWS_AS(parse_stalls("[1]"), ReportError);
  CHECK(stalls("", "", {}).empty());
}
