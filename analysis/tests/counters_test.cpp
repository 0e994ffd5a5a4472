#include "analysis/counters.h"

#include <cmath>

#include <doctest/doctest.h>

#include "analysis/launches.h"
#include "analysis/tests/example_kernels.h"
#include "core/error.h"
#include "report/tests/example_report.h"

using namespace splash;
using namespace splash::analysis;
using namespace splash::analysis::testing;
using namespace splash::report;
using namespace splash::report::testing;

namespace {

// The case that ncu-raw.csv profiles: 16 heads, 16384 x 16384, d 64, bfloat16, causal, forward.
KernelCase profiled_case() {
  KernelCase kernel;
  kernel.case_id = "c0";
  kernel.implementation = "entmax/1-one-pass";
  kernel.output_bytes = 2.0 * 16 * 16384 * 64;
  kernel.input_bytes = 3 * kernel.output_bytes;
  kernel.dram_bytes = kernel.input_bytes + kernel.output_bytes;
  kernel.l2_bytes = 2.9e9;
  kernel.flops = 3.2e11;
  kernel.useful_flops = 2.8e11;
  kernel.unit = "bfloat16";
  kernel.kernel = "forward_kernel";
  kernel.use = {.blocks = 2048, .threads = 256, .registers = 128, .shared_bytes = 115712};
  return kernel;
}

std::vector<NcuKernel> profiled() {
  return read_ncu(SPLASH_SOURCE_DIR "/analysis/tests/data/ncu-raw.csv").kernels;
}

const LevelCounts& of(const std::vector<LevelCounts>& levels, Level level) {
  return levels.at(static_cast<std::size_t>(level));
}

double part(const LevelCounts& level, const std::string& cause) {
  for (const Part& p : level.parts) {
    if (p.cause == cause) return p.amount;
  }
  return 0;
}

double sum(const LevelCounts& level) {
  double total = 0;
  for (const Part& p : level.parts) total += p.amount;
  return total;
}

// Levels of a case with 300 bytes of inputs, 100 of output, and `more` that is neither.
std::vector<LevelCounts> dram_levels(double more, double read, double written, double misses = kMissing) {
  CountedCase c;
  c.kernel.input_bytes = 300;
  c.kernel.output_bytes = 100;
  c.kernel.dram_bytes = 400 + more;
  c.counters.dram_read_bytes = read;
  c.counters.dram_write_bytes = written;
  c.counters.l2_read_miss_bytes = misses;
  return compare_levels(c);
}

}  // namespace

TEST_CASE("counters of a profiled kernel, in bytes and FLOPs") {
  const auto cases = match_counters(profiled(), {profiled_case()});
  REQUIRE(cases.size() == 1);
  CHECK(cases[0].function == "forward_kernel");
  const Counters& c = cases[0].counters;
  CHECK(c.dram_read_bytes == doctest::Approx(355391488));
  CHECK(c.dram_write_bytes == doctest::Approx(50234112));
  CHECK(c.l2_bytes == doctest::Approx(32.0 * 105602231));  // excludes traffic between the halves of L2
  CHECK(c.l2_write_bytes == doctest::Approx(32.0 * 2209809));
  CHECK(c.l2_read_miss_bytes == doctest::Approx(32.0 * 14487420));
  CHECK(c.local_read_bytes == doctest::Approx(32.0 * 2765492));
  CHECK(c.tensor_flops == doctest::Approx(343754670080.0));
  CHECK(c.instructions == doctest::Approx(454845672));
  CHECK(c.seconds == doctest::Approx(985.184e-6));
  CHECK(c.tensor_share == doctest::Approx(0.35854476));
  CHECK(std::isnan(c.l1_bytes));  // sampled there ("SM_B.TriageCompute…"), not counted
}

TEST_CASE("where L2's requests are not told apart, what passed between its halves is taken off the total") {
  auto kernels = profiled();
  kernels[0].metrics.erase("lts__t_sectors_srcunit_tex.sum");
  CHECK(match_counters(kernels, {profiled_case()})[0].counters.l2_bytes ==
        doctest::Approx(32.0 * (117817250 - 12069071)));
  kernels[0].metrics.erase("lts__t_sectors_srcunit_ltcfabric.sum");
  kernels[0].metrics["lts__t_bytes.sum"] = {{.value = "3.5", .unit = "Gbyte"}};
  CHECK(match_counters(kernels, {profiled_case()})[0].counters.l2_bytes == 3.5e9);
}

TEST_CASE("a real kernel's differences: what L2 lost was fetched again, lists were written back") {
  const auto levels = compare_levels(match_counters(profiled(), {profiled_case()})[0]);
  const LevelCounts& dram = of(levels, Level::dram);
  CHECK(dram.counter == doctest::Approx(355391488 + 50234112));
  CHECK_FALSE(dram.close());
  CHECK(part(dram, "refetched tiles") == doctest::Approx(355391488 - 3 * 33554432.0));
  CHECK(part(dram, "write-backs") == doctest::Approx(50234112 - 33554432));
  CHECK(part(dram, "unexplained") == doctest::Approx(0));
  const LevelCounts& l2 = of(levels, Level::l2);
  CHECK(l2.counter / l2.counted == doctest::Approx(1.1653).epsilon(1e-4));
  CHECK_FALSE(l2.close());
  CHECK(part(l2, "local memory") == doctest::Approx(32.0 * 2765492));
  CHECK(part(l2, "written beyond the result") == doctest::Approx(32.0 * 2209809 - 33554432));
  const LevelCounts& products = of(levels, Level::products);
  CHECK(products.close());
  CHECK(products.padding == doctest::Approx(4e10));
  for (const LevelCounts& level : levels) CHECK(sum(level) == doctest::Approx(level.counter - level.counted));
}

TEST_CASE("what a declaration counts beyond inputs and result is attributed to neither reads nor writes") {
  const auto dram = [](double more, double read, double written, double misses = kMissing) {
    return of(dram_levels(more, read, written, misses), Level::dram);
  };
  CHECK(part(dram(0, 350, 130), "refetched tiles") == 50);
  CHECK(part(dram(0, 350, 130), "write-backs") == 30);
  // The workspace's 20 counted bytes may be reads or writes.
  CHECK(part(dram(20, 350, 130), "refetched tiles") == 30);
  CHECK(part(dram(20, 350, 130), "write-backs") == 10);
  CHECK(part(dram(20, 350, 130), "unexplained") == 20);
  CHECK(dram(20, 310, 110).parts.size() == 1);  // nothing but "unexplained", which is 0
  CHECK(part(dram(20, 310, 110), "unexplained") == 0);
  // Loads that L2 served are no refetched tiles.
  CHECK(part(dram(0, 350, 100, 310), "refetched tiles") == 10);
  CHECK(part(dram(0, 350, 100, 310), "unexplained") == 40);
  CHECK(part(dram(0, 350, 100, 200), "refetched tiles") == 0);
  // A warm L2, and a result that stayed there.
  CHECK(part(dram(0, 100, 60), "inputs not read") == -200);
  CHECK(part(dram(0, 100, 60), "left in L2") == -40);
  // A declaration that counts fewer reads than the size of the inputs: a gather.
  CHECK(part(dram(-100, 250, 100), "refetched tiles") == 50);
}

TEST_CASE("within 15 %, not further") {
  CHECK(of(dram_levels(0, 360, 100), Level::dram).close());        // 460 of 400
  CHECK_FALSE(of(dram_levels(0, 361, 100), Level::dram).close());  // 461
  CHECK(of(dram_levels(0, 240, 100), Level::dram).close());        // 340
  CHECK_FALSE(of(dram_levels(0, 239, 100), Level::dram).close());
  CHECK_FALSE(of(dram_levels(0, kMissing, 100), Level::dram).close());
  CHECK(of(dram_levels(0, kMissing, 100), Level::dram).parts.empty());
}

TEST_CASE("float32 units do other work than products and are not compared") {
  CountedCase c = match_counters(profiled(), {profiled_case()})[0];
  c.kernel.unit = "float32";
  CHECK(std::isnan(of(compare_levels(c), Level::products).counter));
}

TEST_CASE("calls of one kernel are averaged; calls of several are summed") {
  auto twice = profiled();
  twice.push_back(twice[0]);
  twice[1].metrics["dram__bytes_read.sum"][0].value = "455.391488";
  CHECK(match_counters(twice, {profiled_case()})[0].counters.dram_read_bytes == doctest::Approx(405391488));

  auto call = profiled();
  NcuKernel helper = call[0];
  helper.name = "prepare(int)";
  helper.blocks = 8;
  call.insert(call.begin(), helper);
  KernelCase kernel = profiled_case();
  kernel.launches = 2;
  const CountedCase summed = match_counters(call, {kernel})[0];
  CHECK(summed.counters.dram_read_bytes == doctest::Approx(2 * 355391488.0));
  CHECK(summed.counters.tensor_share == doctest::Approx(0.35854476));  // that of the largest kernel alone
  CHECK(summed.function == "forward_kernel");

  const std::string not_whole =
      "a call of entmax/1-one-pass launches 2 kernels, but the table does not hold whole calls of it and "
      "nothing "
      "else: profile one call alone, as splash counters --command says";
  CHECK_THROWS_WITH_AS(match_counters(profiled(), {kernel}), not_whole.c_str(), InvalidArgument);
  CHECK_THROWS_WITH_AS(match_counters({helper, helper, call[1], helper}, {kernel}), not_whole.c_str(),
                       InvalidArgument);
}

namespace {

// The case that ncu-three-launches.csv profiles in two calls; its numbers are made up.
KernelCase three_launches() {
  KernelCase kernel;
  kernel.case_id = "c3";
  kernel.row = 1;
  kernel.implementation = "splash/0-three-launches";
  kernel.unit = "float32";
  kernel.seconds = 1.3e-3;
  kernel.launches = 3;
  kernel.kernel = "build_lookup_kernel";
  kernel.use = {.blocks = 8192, .threads = 128, .registers = 32, .shared_bytes = 0};
  kernel.all = {
      {.kernel = "build_mask_kernel", .use = {.blocks = 1024, .threads = 128, .shared_bytes = 26112}},
      {.kernel = "build_lookup_kernel", .use = kernel.use},
      {.kernel = "splash_forward_sparse", .use = {.blocks = 8192, .threads = 128}}};
  return kernel;
}

}  // namespace

TEST_CASE("each launch of a call has its own time, of the mean call, in the report and out of it") {
  const auto seen = read_ncu(SPLASH_SOURCE_DIR "/analysis/tests/data/ncu-three-launches.csv").kernels;
  REQUIRE(seen.size() == 6);
  KernelCase kernel = three_launches();
  const CountedCase counted = match_counters(seen, {kernel})[0];
  REQUIRE(counted.launch_seconds.size() == 3);
  CHECK(counted.launch_seconds[0] == doctest::Approx(412.25e-6));
  CHECK(counted.launch_seconds[1] == doctest::Approx(13e-6));
  CHECK(counted.launch_seconds[2] == doctest::Approx(890e-6));
  CHECK(counted.counters.seconds == doctest::Approx(1315.25e-6));
  CHECK(counted.counters.dram_read_bytes == doctest::Approx(27.3e6));

  Report report = example_report();
  write_counters(report, {counted});
  CHECK(read_counters(report, {kernel})[0].launch_seconds == counted.launch_seconds);
  const std::string text = report.find(kLaunchSecondsColumn)->texts[1];
  for (std::size_t i = 0; i < 3; ++i) kernel.all[i].seen_seconds = parse_launch_seconds(text)[i];
  const std::vector<Ceiling> ceilings{ceiling("launch", "", 2e-6),     ceiling("graph node", "", 1e-6),
                                      ceiling("fma", "float32", 6e13), ceiling("l2 read", "", 1e13),
                                      ceiling("dram copy", "", 4e12),  ceiling("dram read", "", 4e12)};
  describe_longest(kernel, kMachine, ceilings);
  CHECK(kernel.launches_seen);
  CHECK(kernel.kernel == "splash_forward_sparse");
  CHECK(kernel.all[0].seconds / kernel.all[2].seconds == doctest::Approx(412.25 / 890));
}

TEST_CASE("a table whose launches are not the report's is refused, not read in another order") {
  auto seen = read_ncu(SPLASH_SOURCE_DIR "/analysis/tests/data/ncu-three-launches.csv").kernels;
  std::swap(seen[0], seen[1]);
  CHECK_THROWS_WITH_AS(
      match_counters(seen, {three_launches()}),
      "kernel 1 of a call of splash/0-three-launches is build_lookup_kernel (8192 blocks x 128 "
      "threads) in the table, but build_mask_kernel (1024 blocks x 128 threads) in the report: "
      "profile the build that the report is of",
      InvalidArgument);
}

TEST_CASE("a kernel is told by its launch and its name, or by registers and shared memory") {
  KernelCase kernel = profiled_case();
  kernel.kernel = "forward_kernel, long lists";
  CHECK(match_counters(profiled(), {kernel}).size() == 1);
  kernel.kernel = "one-pass";  // another declared name; registers and shared memory agree
  CHECK(match_counters(profiled(), {kernel}).size() == 1);
  auto unsaid = profiled();
  unsaid[0].metrics.erase("launch__registers_per_thread");
  CHECK_THROWS_AS(match_counters(unsaid, {kernel}), InvalidArgument);
  CHECK(match_counters(unsaid, {profiled_case()}).size() == 1);

  KernelCase other = profiled_case();
  other.use.registers = 120;
  CHECK_THROWS_AS(match_counters(profiled(), {other}), InvalidArgument);
  other = profiled_case();
  other.use.shared_bytes = 1000;
  CHECK_THROWS_AS(match_counters(profiled(), {other}), InvalidArgument);
  other = profiled_case();
  other.use.blocks = 1024;
  CHECK_THROWS_WITH_AS(
      match_counters(profiled(), {other}),
      "the counters are of another kernel: forward_kernel (2048 blocks x 256 threads) is that of "
      "none of the 1 chosen cases, forward_kernel (1024 blocks x 256 threads)",
      InvalidArgument);
}

TEST_CASE("a kernel that fits several cases, and one without counters of bytes, are refused") {
  KernelCase second = profiled_case();
  second.case_id = "c1";
  CHECK_THROWS_WITH_AS(
      match_counters(profiled(), {profiled_case(), second}),
      "the counters of forward_kernel (2048 blocks x 256 threads) fit 2 cases, such as c0 and c1 "
      "of entmax/1-one-pass: name one with --case",
      InvalidArgument);
  auto bare = profiled();
  std::erase_if(bare[0].metrics, [](const auto& metric) { return !metric.first.starts_with("launch__"); });
  CHECK_THROWS_WITH_AS(
      match_counters(bare, {profiled_case()}),
      "of forward_kernel there are no counters of bytes or FLOPs, such as dram__bytes_read.sum: "
      "collect the metrics that splash counters --command names, and print them with --page raw "
      "--csv",
      InvalidArgument);
}

TEST_CASE("counters go into a report as columns, and come out of them") {
  Report report = example_report();
  KernelCase kernel = profiled_case();
  kernel.row = 1;
  write_counters(report, match_counters(profiled(), {kernel}));
  const Column* reads = report.find("dram_read_bytes_counter");
  REQUIRE(reads != nullptr);
  CHECK(reads->info.formula ==
        "counter: dram__bytes_read.sum, or 32 dram__sectors_read.sum (Nsight Compute, sum over the kernels "
        "of a "
        "call)");
  CHECK_FALSE(reads->info.missing_reason.empty());
  CHECK(reads->numbers[1] == doctest::Approx(355391488));
  CHECK(std::isnan(reads->numbers[0]));

  kernel.row = 2;  // another import keeps the existing columns
  const std::size_t columns = report.results.size();
  write_counters(report, match_counters(profiled(), {kernel}));
  CHECK(report.results.size() == columns);
  std::vector<KernelCase> rows(3, kernel);
  for (int64_t row = 0; row < 3; ++row) rows[static_cast<std::size_t>(row)].row = row;
  const auto read = read_counters(report, rows);
  CHECK(read[0].function.empty());
  CHECK(std::isnan(read[0].counters.dram_read_bytes));
  for (const std::size_t row : {1U, 2U}) {
    CHECK(read[row].function == "forward_kernel");
    CHECK(read[row].counters.l2_bytes == doctest::Approx(32.0 * 105602231));
  }
  CHECK(read_counters(example_report(), rows)[1].function.empty());

  Report strange = example_report();
  strange.results.push_back(text_column("dram_read_bytes_counter", {"", "", ""}));
  CHECK_THROWS_WITH_AS(write_counters(strange, match_counters(profiled(), {kernel})),
                       "the report's column 'dram_read_bytes_counter' is not one of numbers a case",
                       ReportError);
}
