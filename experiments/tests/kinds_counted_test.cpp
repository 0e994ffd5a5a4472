// A variant's trace and the simulated caches against what Nsight Compute counted on an H200.

#include <algorithm>
#include <cmath>

#include <doctest/doctest.h>

#include "analysis/cache/simulate.h"
#include "analysis/counters.h"
#include "analysis/launches.h"
#include "experiments/kinds/support/counted_backward.h"
#include "experiments/kinds/support/counted_kernel.h"
#include "experiments/kinds/support/gpu_problem.h"
#include "experiments/kinds/support/planned_kernel.h"
#include "experiments/kinds/support/recount.h"
#include "experiments/tests/kinds_helpers.h"
#include "gpu/entmax/hopper/prepare/high_norm.h"
#include "gpu/entmax/hopper/screen/tile_schedule.h"
#include "report/io.h"

using namespace splash;
using namespace splash::analysis;
using namespace splash::report;
using namespace splash::experiments;
using namespace splash::experiments::tests;

namespace {

// FLOPs of the tiles that blocks compute more, or fewer, than when the counters were taken: blocks then
// sampled 16 tiles, spread evenly.
double flops_of_other_samples(int64_t heads, int q_tiles) {
  constexpr int kTile = 128, kSampled = 4096,
                kSegment = gpu::entmax::hopper::high_norm_segment(16384, kTile, kSampled);
  int64_t positions = 0;
  for (int count = 1; count <= q_tiles; ++count) {  // causal: a block has as many tiles as its position
    const int first_sees = kTile * (count - 1) + 1;
    const gpu::entmax::hopper::TileSchedule schedule({0, count}, kTile, {0, first_sees / kSegment}, kSegment,
                                                     kSampled);
    const int before = std::clamp(count / 2 * 2, 2, 16) + (count + 1) / 2 * 2;
    positions += schedule.length() - before;
  }
  return static_cast<double>(heads * positions) * 2 * kTile * kTile * 64;
}

std::vector<KernelCase> described_kernels_of_all(const Report& report) {
  const Machine machine =
      machine_of(report.provenance.gpu, read_machines(SPLASH_SOURCE_DIR "/data/machines"));
  return analysis::described_kernels(kernel_cases(report, Calls::all), machine.multiprocessors,
                                     report.ceilings);
}

}  // namespace

// 16 heads, 16384 x 16384, d 64, bfloat16, causal. Only the kernel that screens was counted, with L2 flushed
// before it, when it still sampled 16 tiles, spread evenly.
TEST_CASE("the flagship's trace is what Nsight Compute counted, but for what the data decides") {
  if (gpu::all_variants().empty()) return;  // a build without CUDA has no declarations
  const Machine machine = machine_of("NVIDIA H200", read_machines(SPLASH_SOURCE_DIR "/data/machines"));
  const Parameters parameters = parameters_of("gpu-attention", with({{"q_heads", int64_t{16}},
                                                                     {"kv_heads", int64_t{16}},
                                                                     {"q_len", int64_t{16384}},
                                                                     {"kv_len", int64_t{16384}},
                                                                     {"mask", std::string("causal")},
                                                                     {"normalizer", std::string("entmax")}},
                                                                    {}));
  const gpu::Variant& variant = gpu::find_variant("entmax/0-one-pass");
  const AttentionSpec spec = problem_spec(parameters);
  const gpu::Plan plan = variant.plan(spec, Dtype::bf16, device_of(machine));
  const auto traces = variant.trace(spec, Dtype::bf16, plan);
  REQUIRE(traces.back().kernel == "forward_kernel");

  KernelCase kernel = planned_kernel("entmax/0-one-pass", parameters, machine);
  kernel.launches = 1;
  kernel.use.registers = 128;
  kernel.use.shared_bytes = 115712;  // its use when it was counted
  const auto counted =
      match_counters(read_ncu(SPLASH_SOURCE_DIR "/analysis/tests/data/ncu-raw.csv").kernels, {kernel});
  REQUIRE(counted.size() == 1);
  const Counters& c = counted[0].counters;
  CHECK(kernel.flops - flops_of_other_samples(16, 128) == doctest::Approx(c.tensor_flops).epsilon(1e-3));

  const CallTraffic traffic =
      simulate({{.trace = traces.back(), .at_once = 2 * 132}}, machine.multiprocessors.count, machine.l2);
  const auto l2 = static_cast<double>(traffic.memory.asked),
             read = static_cast<double>(traffic.memory.dram_read),
             written = static_cast<double>(traffic.memory.dram_written + traffic.memory.unwritten);
  // The trace is a lower bound: queries may weigh more than one value each, and spilled registers add
  // traffic.
  CHECK(l2 < c.l2_bytes);
  CHECK(l2 > 0.8 * (c.l2_bytes - c.local_read_bytes));
  CHECK(read < c.dram_read_bytes);
  CHECK(written < c.dram_write_bytes);
}

TEST_CASE("a recounted record has calls of forward and backward, counted from their support") {
  if (gpu::all_variants().empty()) return;  // a build without CUDA has no declarations
  Report report = read_report(SPLASH_SOURCE_DIR "/data/reports/flagship-h200.h5");
  recount(
      report, "entmax/0-one-pass", [](const std::string&) {}, false);
  int counted = 0;
  for (const KernelCase& kernel : described_kernels_of_all(report)) {
    if (kernel.problem.find("forward and backward") == std::string::npos) continue;
    CAPTURE(kernel.problem);
    ++counted;
    const auto row = static_cast<std::size_t>(kernel.row);
    const double entries =
        report.find("support_mean")->numbers[row] * static_cast<double>(kernel.shape.rows());
    double of_backward = 0;
    for (const Launch& launch : kernel.all) of_backward += launch.unit == "float32" ? launch.flops : 0;
    CHECK(of_backward == doctest::Approx(8 * entries * static_cast<double>(kernel.shape.head_dim)));
    CHECK(kernel.flops > of_backward);
    CHECK(kernel.launches == static_cast<int>(kernel.all.size()));
    CHECK(kernel.launches == 2 + 4 + 3);
    const double share = report.find("roof_share")->numbers[row];
    CHECK(share > 0);
    CHECK(share < 1.05);
    CHECK(kernel_cases(report).size() < kernel_cases(report, Calls::all).size());
  }
  CHECK(counted == 8);
  // The near-dense case is not counted, because dense products may compute its rows.
  const Column &passes = *report.find("pass"), &support = *report.find("support_mean");
  for (std::size_t row = 0; row < passes.texts.size(); ++row) {
    if (passes.texts[row] == "forward_backward" && support.numbers[row] > kMostCountedSupport)
      CHECK(std::isnan(report.find("executed_flops")->numbers[row]));
  }
}
