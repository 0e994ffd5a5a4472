#include "analysis/roofline.h"

#include <cmath>

#include <doctest/doctest.h>

#include "analysis/tests/example_kernels.h"
#include "core/error.h"
#include "report/tests/example_report.h"

using namespace splash;
using namespace splash::analysis;
using namespace splash::analysis::testing;
using namespace splash::report;
using namespace splash::report::testing;

namespace {

// A kernel, one that was not run and a peer.
Report example() {
  Report report;
  report.results = {text_column("case_id", {"a", "b", "c"}),
                    text_column("implementation", {"wmma/1-x", "wmma/2-y", "torch-cudnn"}),
                    text_column("dtype", {"bfloat16", "float16", "float16"}),
                    text_column("mask", {"causal", "none", "none"}),
                    text_column("math_unit", {"float16", "float16", ""}),
                    text_column("normalizer", {"entmax", "softmax", "softmax"}),
                    text_column("selection", {"top_k_block", "all", "all"}),
                    text_column("method", {"graph", "events", "events"}),
                    text_column("cache", {"warm", "warm", "warm"}),
                    number_column("alpha", {1.5, 1.5, 1.5}),
                    number_column("k_keep", {8, 8, 8}),
                    number_column("block", {64, 64, 64}),
                    number_column("share", {0.1, 0.1, 0.1}),
                    number_column("tile_q", {64, 64, kMissing}),
                    number_column("tile_k", {128, 128, kMissing}),
                    number_column("stages", {2, 2, kMissing}),
                    number_column("batch", {1, 1, 1}),
                    number_column("q_heads", {32, 8, 8}),
                    number_column("kv_heads", {8, 8, 8}),
                    number_column("q_len", {512, 1, 1}),
                    number_column("kv_len", {1024, 1, 1}),
                    number_column("head_dim", {64, 64, 64}),
                    number_column("time_median", {1e-3, kMissing, 1e-3}),
                    number_column("executed_flops", {2e11, 1, kMissing}),
                    number_column("useful_flops", {1e11, 1, kMissing}),
                    text_column("kernel", {"x_kernel", "y_kernel", ""}),
                    number_column("dram_bytes_counted", {1e9, 1, kMissing}),
                    number_column("l2_bytes_counted", {8e9, 1, kMissing}),
                    number_column("launches", {2, 1, kMissing}),
                    number_column("blocks", {264, 1, kMissing}),
                    number_column("threads", {256, 1, kMissing}),
                    number_column("registers", {128, 1, kMissing}),
                    number_column("shared_bytes", {1000, 1, kMissing}),
                    number_column("blocks_per_multiprocessor", {2, 1, kMissing})};
  report.ceilings = {ceiling("dram copy", "", 4e12),      ceiling("dram read", "", 5e12),
                     ceiling("l2 read", "", 1e13),        ceiling("tensor", "float16", 5e14),
                     ceiling("tensor", "bfloat16", 8e14), ceiling("fma", "float32", 6e13)};
  return report;
}

}  // namespace

TEST_CASE("of a report the kernels that were run are taken, peers are not") {
  const auto cases = kernel_cases(example());
  REQUIRE(cases.size() == 1);
  CHECK(cases[0].implementation == "wmma/1-x");
  CHECK(cases[0].problem ==
        "bfloat16, 1 x 32/8 heads, 512 x 1024, d 64, causal, entmax 1.5, top_k_block 8 of 64, graph");
  CHECK(cases[0].setting == "bfloat16, d 64, causal, entmax 1.5, top_k_block 8 of 64, graph");
  CHECK(std::isnan(cases[0].clock_hz));
  CHECK(std::isnan(cases[0].instructions));
  CHECK(cases[0].unit == "bfloat16");  // declared as float16, which stands for both
  CHECK(cases[0].use.blocks == 264);
  CHECK(cases[0].launches == 2);
  CHECK(cases[0].kernel == "x_kernel");
  CHECK(cases[0].useful_flops == 1e11);
  CHECK(cases[0].output_bytes == 2.0 * 32 * 512 * 64);
  CHECK(cases[0].input_bytes == 2.0 * (32 * 512 + 2 * 8 * 1024) * 64);
}

TEST_CASE("floors are counts over measured ceilings, and the highest one is the level") {
  const Report report = example();
  KernelCase kernel = kernel_cases(report).front();
  Floors floors = floors_of(kernel, report.ceilings);
  CHECK(floors.products == doctest::Approx(2e11 / 8e14));
  CHECK(floors.l2 == doctest::Approx(8e9 / 1e13));
  CHECK(floors.dram == doctest::Approx(1e9 / 5e12));  // the better of reading and copying
  CHECK(floors.level() == Level::l2);
  CHECK(floors.highest() == floors.l2);
  kernel.unit = "float32";
  CHECK(floors_of(kernel, report.ceilings).level() == Level::products);  // plain FMA
  kernel.unit = "float16";
  CHECK(floors_of(kernel, report.ceilings).products == doctest::Approx(2e11 / 5e14));
  CHECK(std::isnan(shared_seconds(kernel, report.ceilings)));
  kernel.flops = kernel.l2_bytes = 0;
  CHECK(floors_of(kernel, report.ceilings).level() == Level::dram);
}

TEST_CASE("a level of which more is counted than the time allows is not the nearest one") {
  const Floors floors{.products = 2e-3, .l2 = 1.06e-3, .dram = 1.04e-3};
  CHECK(floors.within(1e-3).l2 == 0);
  CHECK(floors.within(1e-3).dram == 1.04e-3);   // within the error of measuring
  CHECK(floors.within(1e-3).products == 2e-3);  // no cache stands above products
  CHECK(Floors{.products = 1, .l2 = 9, .dram = 8}.within(2).level() == Level::products);
}

TEST_CASE("a ceiling far above the data sheet is questioned") {
  Ceiling tensor = ceiling("tensor", "bfloat16", 1.39e15);
  tensor.units = "FLOP/s";
  CHECK(why_questioned(tensor).empty());  // no data sheet value
  tensor.datasheet = 1e15;
  CHECK(why_questioned(tensor) == "the ceiling 'tensor' in bfloat16 was measured at 139 % of the data sheet");
  tensor.measured = 1.04e15;  // a boost clock
  CHECK(why_questioned(tensor).empty());
  Ceiling launch = ceiling("launch", "", 3e-6);
  launch.units = "s";
  launch.datasheet = 1e-6;
  CHECK(why_questioned(launch).empty());  // slower than the data sheet is no reason for doubt
}

TEST_CASE("counters and clocks are taken over where the report has them") {
  Report report = example();
  report.ceilings.push_back(ceiling("shared read", "", 3e13));
  report.results.push_back(number_column("clock_before", {1.9e9, kMissing, kMissing}));
  report.results.push_back(number_column("clock_after", {1.7e9, kMissing, kMissing}));
  report.results.push_back(number_column("instructions_counter", {5e8, kMissing, kMissing}));
  report.results.push_back(number_column("shared_wavefronts_counter", {1e8, kMissing, kMissing}));
  const KernelCase kernel = kernel_cases(report).front();
  CHECK(kernel.clock_hz == 1.8e9);
  CHECK(kernel.instructions == 5e8);
  CHECK(shared_seconds(kernel, report.ceilings) == doctest::Approx(128e8 / 3e13));
}

TEST_CASE("a report without such cases or without a ceiling is refused in one sentence") {
  Report report = example();
  report.results.erase(report.results.begin() + 4);
  CHECK_THROWS_WITH_AS(
      kernel_cases(report),
      "there is no column 'math_unit': the report holds no cases of the kind gpu-attention to analyse",
      ReportError);
  report = example();
  report.ceilings.erase(report.ceilings.begin() + 4);
  CHECK_THROWS_WITH_AS(floors_of(kernel_cases(report).front(), report.ceilings),
                       "the report has no ceiling 'tensor' in bfloat16", ReportError);
}
