// Compares the lab's models with what CUDA said on the device, for every kernel of the recorded reports.

#include <algorithm>
#include <cmath>

#include <doctest/doctest.h>

#include "analysis/changes.h"
#include "analysis/diagnosis.h"
#include "analysis/launches.h"
#include "analysis/machine.h"
#include "analysis/next_steps.h"
#include "analysis/roofline.h"
#include "analysis/scaling.h"
#include "analysis/statistics.h"
#include "analysis/what_if.h"
#include "core/error.h"
#include "experiments/runner/diagnoses.h"
#include "report/io.h"

using namespace splash;
using namespace splash::analysis;
using namespace splash::report;

namespace {

// Every variant of every ladder. The second report is older: it has counters, but lacks the newest variants.
constexpr const char* kRecords[] = {"ladders-h100", "ladders-h200"};

Report recorded_report(const std::string& name) {
  return read_report(SPLASH_SOURCE_DIR "/data/reports/" + name + ".h5");
}

}  // namespace

TEST_CASE("occupancy of every recorded kernel is what CUDA's calculator said where it ran") {
  for (const char* name : kRecords) {
    CAPTURE(name);
    const Report report = recorded_report(name);
    const auto machine = analysis::machine_of(report.provenance.gpu,
                                              analysis::read_machines(SPLASH_SOURCE_DIR "/data/machines"));
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
}

namespace {

struct Recorded {
  explicit Recorded(const std::string& name = "ladders-h200") : report(recorded_report(name)) {}

  Report report;
  Multiprocessors machine =
      analysis::machine_of(report.provenance.gpu, analysis::read_machines(SPLASH_SOURCE_DIR "/data/machines"))
          .multiprocessors;
  std::vector<KernelCase> kernels = described_kernels(report, machine);

  const KernelCase& kernel(const std::string& implementation, const std::string& problem) const {
    for (const KernelCase& k : kernels) {
      if (k.implementation == implementation && k.problem.starts_with(problem)) return k;
    }
    throw InvalidArgument("not recorded: " + implementation + ", " + problem);
  }
  Diagnosis diagnosis(const KernelCase& k) const { return diagnose(k, machine, report.ceilings, kernels); }
  Cause verdict(const std::string& implementation, const std::string& problem) const {
    return diagnosis(kernel(implementation, problem)).findings.front().cause;
  }
};

bool has(const std::vector<std::string>& clauses, const std::string& begin) {
  return std::any_of(clauses.begin(), clauses.end(), [&](const auto& c) { return c.starts_with(begin); });
}

}  // namespace

TEST_CASE(
    "document 003, head_dim 8192: neither cache nor bandwidth, too little parallelism, and it is measured") {
  const Recorded recorded;
  const KernelCase& kernel =
      recorded.kernel("large_dims/0-one-query", "float32, 1 x 4 heads, 16 x 16, d 8192");
  const Diagnosis diagnosis = recorded.diagnosis(kernel);
  CHECK(diagnosis.findings.front().cause == Cause::parallelism);
  CHECK(diagnosis.findings.front().gain > 5);
  CHECK(diagnosis.findings.front().sentence.find("64 blocks leave 68 of 132 multiprocessors idle") !=
        std::string::npos);
  for (const char* level : {"the float32 units (", "L2 (", "DRAM (", "launches ("}) {
    CAPTURE(level);
    CHECK(has(diagnosis.ruled_out, level));
  }
  // With 64 heads the blocks fill the GPU and ask for most of what L2 can deliver. The counters say that L1
  // serves half of that, and that nothing is busy.
  CHECK(recorded.verdict("large_dims/0-one-query", "float32, 1 x 64 heads, 16 x 16, d 8192") ==
        Cause::latency);
  // The document's remedy, 16 queries per block, leaves even fewer blocks.
  CHECK(recorded.verdict("large_dims/1-sixteen-queries", "float32, 1 x 4 heads, 16 x 16, d 8192") ==
        Cause::parallelism);
}

TEST_CASE(
    "document 000: launches, bandwidth and idle multiprocessors are ruled out; K_KEEP is where time goes") {
  const Recorded recorded;
  const KernelCase& kernel = recorded.kernel("splash/0-three-launches",
                                             "float32, 2 x 8 heads, 2048 x 2048, d 64, positions, entmax "
                                             "1.5, top_k_block 8 of 64");
  const Diagnosis diagnosis = recorded.diagnosis(kernel);
  CHECK(diagnosis.findings.front().cause == Cause::inside);
  CHECK(diagnosis.findings.front().sentence.find("% of the ceiling of L2 is used and less of the others") !=
        std::string::npos);  // the nearest resource is named only there
  CHECK(kernel.kernel == "build_mask_kernel");
  for (const char* ruled_out : {"the float32 units (", "DRAM (", "launches (", "idle multiprocessors ("}) {
    CAPTURE(ruled_out);
    CHECK(has(diagnosis.ruled_out, ruled_out));
  }
  CHECK(launch_seconds(kernel, recorded.report.ceilings) < 5e-6);  // the document says 18 ms
  const std::vector<Clue> clues = clues_of(kernel, recorded.kernels);
  REQUIRE_FALSE(clues.empty());
  CHECK(clues[0].words == "top_k_block 2 of 64 instead of top_k_block 8 of 64");
  CHECK(clues[0].time < 0.7);
  const KernelCase* faster = faster_rung(kernel, recorded.kernels);
  REQUIRE(faster != nullptr);
  CHECK(faster->implementation == "splash/7-tensor-screen");
}

TEST_CASE("recorded kernels whose cause is known get it") {
  const Recorded recorded;
  // Everything else overlaps, so the tensor cores remain.
  CHECK(recorded.verdict("wmma/10-warp-specialised",
                         "bfloat16, 1 x 16 heads, 16384 x 16384, d 128, causal") == Cause::products);
  // There are 64 blocks, and twice the heads do twice the work per second.
  CHECK(recorded.verdict("wmma/7-tile-64", "float16, 1 x 8 heads, 512 x 512, d 64, graph") ==
        Cause::parallelism);
  // Rows of a shared tile fall into the same banks. Padding them (the next rung) gains 2, so it is not
  // latency.
  const Diagnosis conflicts =
      recorded.diagnosis(recorded.kernel("wmma/2-wmma", "float16, 2 x 8 heads, 512 x 512, d 64, graph"));
  CHECK(conflicts.findings.front().cause == Cause::inside);
  CHECK(conflicts.findings.front().sentence.find("it is not latency") != std::string::npos);
  // On a grid that fills the GPU there are counters, which decide.
  CHECK(recorded.verdict("wmma/2-wmma", "bfloat16, 16 x 8 heads, 2048 x 2048") == Cause::shared_memory);
  // Single threads choose 8 of 64 scores.
  CHECK(recorded.verdict("splash/0-three-launches", "float32, 2 x 8 heads, 8192 x 8192") ==
        Cause::issue_slots);
  // Clusters stream more keys than L2 holds: 3.9 GB from DRAM instead of 0.2.
  CHECK(recorded.verdict("large_dims/5-fragments", "bfloat16, 8 x 4 heads, 512 x 512, d 2048") ==
        Cause::dram);
  // One block per multiprocessor. The next rung has two, which take 1.3 times as long.
  CHECK(recorded.verdict("kascade/2-no-broadcast", "bfloat16, 1 x 32/8 heads, 32768 x 32768") ==
        Cause::latency);
  // Every query reads all keys again. More L2 bytes are counted than L2 can have delivered, so L1 serves a
  // part, and that count is no verdict.
  const Diagnosis served = recorded.diagnosis(
      recorded.kernel("large_dims/0-one-query", "float32, 8 x 4 heads, 512 x 512, d 2048"));
  CHECK(served.findings.front().cause == Cause::inside);
  CHECK(has(served.not_known, "L2 (counted are 121 % of what it could deliver, so L1 serves a part)"));
  CHECK_FALSE(has(served.ruled_out, "L2"));
}

TEST_CASE("a run's report says of its own kernels what a diagnosis would, and of others nothing") {
  Recorded recorded;
  Report bare = recorded.report;  // without its diagnoses
  std::erase_if(bare.results, [](const Column& column) {
    const std::string& name = column.info.name;
    return name == "verdict" || name == "diagnosis" || name.starts_with("time_predicted");
  });
  Report report = bare;
  experiments::add_diagnoses(report);
  const Column* verdicts = report.find("verdict");
  const Column* times = report.find("time_predicted");
  REQUIRE(verdicts != nullptr);
  REQUIRE(times != nullptr);
  for (const KernelCase& kernel : recorded.kernels) {
    const auto row = static_cast<std::size_t>(kernel.row);
    CHECK(verdicts->texts[row] == to_string(recorded.diagnosis(kernel).findings.front().cause));
  }
  CHECK(std::count(verdicts->texts.begin(), verdicts->texts.end(), "") ==
        report.cases() - static_cast<int64_t>(recorded.kernels.size()));
  Report unknown = bare;
  unknown.provenance.gpu = "Voodoo";
  experiments::add_diagnoses(unknown);
  CHECK(unknown.find("verdict") == nullptr);
  unknown.provenance.compute_capability = 90;
  unknown.provenance.multiprocessors = 132;
  experiments::add_diagnoses(unknown);  // by the report's own ceilings
  REQUIRE(unknown.find("verdict") != nullptr);
  CHECK(unknown.find("verdict")->texts == verdicts->texts);
  Report study = read_report(SPLASH_SOURCE_DIR "/data/reports/reproduce-quick.h5");
  experiments::add_diagnoses(study);
  CHECK(study.find("verdict") == nullptr);
}

TEST_CASE("of recorded kernels more batch entries are never predicted faster than fewer were measured") {
  for (const char* name : kRecords) {
    CAPTURE(name);
    const Recorded recorded(name);
    const Predictor predictor(recorded.kernels, {recorded.machine, recorded.report.ceilings});
    for (const KernelCase& kernel : recorded.kernels) {
      CAPTURE(kernel.implementation);
      CAPTURE(kernel.problem);
      double before = kernel.seconds;
      for (const int64_t batch : {2, 3, 4, 8, 16}) {
        CAPTURE(batch);
        const double seconds = predictor.predict(changed(kernel, {.batch = batch})).seconds;
        CHECK(seconds >= 0.999999 * before);
        before = seconds;
      }
    }
  }
}

TEST_CASE("what is told to try on a recorded kernel can be built, and is not nearest and ruled out at once") {
  for (const char* name : kRecords) {
    CAPTURE(name);
    const Recorded recorded(name);
    for (const KernelCase& kernel : recorded.kernels) {
      CAPTURE(kernel.implementation);
      CAPTURE(kernel.problem);
      REQUIRE(kernel.instruction_q > 0);
      CHECK(kernel.tile_q % kernel.instruction_q == 0);
      const Diagnosis diagnosis = recorded.diagnosis(kernel);
      for (const std::string& clause : diagnosis.ruled_out) {
        const std::string name = clause.substr(0, clause.find(" ("));
        if (name == "launches" || name.starts_with("idle") || name.starts_with("too few")) continue;
        CHECK(diagnosis.findings.front().sentence.find("the ceiling of " + name + " is used") ==
              std::string::npos);
        CHECK_FALSE(diagnosis.findings.front().sentence.starts_with(name));
      }
    }
  }
}

TEST_CASE("exponentials and products share the time of wmma/10 at 16k, d 64") {
  const Recorded recorded;
  for (const char* mask : {", causal", ""}) {
    const std::string problem = std::string("bfloat16, 1 x 16 heads, 16384 x 16384, d 64") + mask;
    const auto found =
        std::find_if(recorded.kernels.begin(), recorded.kernels.end(), [&](const KernelCase& k) {
          return k.implementation == "wmma/10-warp-specialised" && k.problem == problem;
        });
    REQUIRE(found != recorded.kernels.end());
    const KernelCase& kernel = *found;
    const double pairs = 16.0 * 16384 * (*mask != 0 ? 16385 / 2.0 : 16384);
    CHECK(kernel.exponentials > 1.03 * pairs);  // four threads correct a row's sum every 128 keys
    CHECK(kernel.exponentials < 1.07 * pairs);  // and masked halves of tiles
    const Column* const after = recorded.report.find("clock_after");
    REQUIRE(after != nullptr);
    const auto share_at = [&](double clock) {
      return kernel.exponentials / (16 * 132 * clock) / kernel.seconds;
    };
    const double share = share_at(after->numbers[static_cast<std::size_t>(kernel.row)]);
    CAPTURE(share);
    CHECK(share > 0.50);
    CHECK(share < 0.53);
    CHECK(share_at(1.56e9) < 0.61);  // the clock at which the tensor cores' ceiling was measured
    CHECK(floors_of(kernel, recorded.report.ceilings).products / kernel.seconds ==
          doctest::Approx(0.57).epsilon(0.01));
  }
}

TEST_CASE("of splash/1 the mask kernel is the longest, and one block of it fills a multiprocessor") {
  const Recorded recorded;
  const KernelCase& kernel = recorded.kernel("splash/1-tiles-128-256", "float32, 2 x 8 heads, 8192 x 8192");
  CHECK(kernel.kernel == "build_mask_kernel");
  const Finding verdict = recorded.diagnosis(kernel).findings.front();
  CHECK(verdict.cause == Cause::latency);
  CHECK(verdict.sentence.find("8 of 64 warps of build_mask_kernel, the longest of 3 kernels") !=
        std::string::npos);
  CHECK(verdict.sentence.find("limited by shared memory: 166 KB a block, so one of 8 warps fits") !=
        std::string::npos);
}

TEST_CASE("what is estimated of splash/0's kernels at N 1024 is near what ncu saw of each alone") {
  const Recorded recorded;
  const KernelCase& kernel = recorded.kernel("splash/0-three-launches", "float32, 2 x 8 heads, 1024 x 1024");
  REQUIRE(kernel.all.size() == 3);
  const double seen[] = {398, 10, 179};  // us, from the rung's finding
  for (std::size_t i = 0; i < 3; ++i) {
    CAPTURE(kernel.all[i].kernel);
    CHECK(kernel.all[i].seconds / kernel.seconds == doctest::Approx(seen[i] / 587).scale(1).epsilon(0.05));
  }
}

TEST_CASE("no recorded kernel is faster than its products at the measured ceiling") {
  for (const char* name : kRecords) {
    CAPTURE(name);
    const Report report = recorded_report(name);
    for (const KernelCase& kernel : kernel_cases(report)) {
      CAPTURE(kernel.implementation);
      CAPTURE(kernel.problem);
      CHECK(floors_of(kernel, report.ceilings).products <= kernel.seconds);
    }
  }
}

TEST_CASE(
    "a recorded kernel's time is predicted from other problems of it, and cut otherwise, half within 25 %") {
  for (const char* name : kRecords) {
    CAPTURE(name);
    const Recorded recorded(name);
    const Predictor predictor(recorded.kernels, {recorded.machine, recorded.report.ceilings});
    const auto errors_of = [](const std::vector<double>& ratios) {
      std::vector<double> errors;
      for (const double ratio : ratios) errors.push_back(std::abs(1 / ratio - 1));
      std::sort(errors.begin(), errors.end());
      return errors;
    };
    const std::vector<double> problems = errors_of(predictor.held_out_ratios());
    REQUIRE(problems.size() > 200);
    CAPTURE(problems[problems.size() * 8 / 10]);
    CHECK(problems[problems.size() / 2] < 0.25);
    const std::vector<double> cuts = errors_of(predictor.recut_ratios());
    REQUIRE(cuts.size() > 20);
    CAPTURE(cuts[cuts.size() * 8 / 10]);
    CHECK(cuts[cuts.size() / 2] < 0.25);
  }
}

TEST_CASE(
    "the flagship's time is predicted from other problems, half within 25 %, eight in ten within 50 %") {
  std::vector<double> all;
  for (const char* name : {"flagship-h200", "flagship-python-h100", "flagship-windows-h100"}) {
    CAPTURE(name);
    const Recorded recorded(name);
    std::vector<double> errors =
        Predictor(recorded.kernels, {recorded.machine, recorded.report.ceilings}).held_out_ratios();
    for (double& error : errors) error = std::abs(1 / error - 1);
    REQUIRE(errors.size() >= 3);
    CHECK(quantile(errors, 0.8) < 0.5);
    all.insert(all.end(), errors.begin(), errors.end());
  }
  CHECK(quantile(all, 0.5) < 0.25);
}
