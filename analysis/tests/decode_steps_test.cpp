// Bytes of a step of decode, counted by hand, and its counters beside them.

#include "analysis/decode_steps.h"

#include <cmath>

#include <doctest/doctest.h>

#include "analysis/counters.h"
#include "analysis/decode_bytes.h"
#include "report/tests/example_report.h"

using namespace splash;
using namespace splash::analysis;
using namespace splash::report::testing;

namespace {

constexpr AttentionShape kStep{
    .batch = 2, .q_heads = 8, .kv_heads = 2, .q_len = 1, .kv_len = 1000, .head_dim = 64};
constexpr DecodeCounts kSeen{.keys = 4000,
                             .began = 4000,
                             .screened = 2000,
                             .candidates = 300,
                             .rescored = 50,
                             .values = 40,
                             .support = 40};

report::Report decode_report() {
  report::Report report;
  const double none = report::kMissing;
  report.results = {text_column("case_id", {"a0", "a1", "a2"}),
                    text_column("implementation", {"decode/2-four-bits", "torch-cudnn", "decode/0-no-copy"}),
                    text_column("dtype", {"bfloat16", "bfloat16", "bfloat16"}),
                    number_column("time_median", {1e-4, 3e-4, none}),
                    number_column("keys_screened", {2000, none, none}),
                    number_column("dram_bytes_counted", {2e6, 5e6, none}),
                    number_column("launches", {2, none, none}),
                    number_column("alpha", {1.5, none, 1.5})};
  for (const auto& [name, value] : {std::pair{"batch", 2},
                                    {"q_heads", 8},
                                    {"kv_heads", 2},
                                    {"q_len", 1},
                                    {"kv_len", 1000},
                                    {"head_dim", 64}})
    report.results.push_back(number_column(name, std::vector<double>(3, value)));
  return report;
}

NcuKernel seen_kernel(const char* function, const char* read_bytes) {
  NcuKernel kernel;
  kernel.name = function;
  kernel.blocks = 7;
  kernel.threads = 256;
  kernel.metrics["dram__bytes_read.sum"] = {{.value = read_bytes, .unit = "byte"}};
  kernel.metrics["dram__bytes_write.sum"] = {{.value = "1000", .unit = "byte"}};
  return kernel;
}

}  // namespace

TEST_CASE("a step's bytes: what the screen, the lists and the support read") {
  const int64_t small_l2 = 1000, large_l2 = int64_t{1} << 30;
  const DecodeBytes four = decode_bytes(kStep, Dtype::bf16, 64, 4, small_l2, kSeen);
  // A page of 64 keys: 64 x 32 bytes of codes, 64 margins of 2 bytes, 64 scales and 64 zero points of 2.
  CHECK(four.copies == doctest::Approx(2000.0 * (64 * 32 + 64 * 2 + 64 * 4) / 64));
  CHECK(four.start == 2000 * 128);             // keys that no screen sees
  CHECK(four.lists == 2 * 300 * (4 + 4 * 4));  // four rows a unit; more than L2 holds
  CHECK(four.rescored == 50 * 128);
  CHECK(four.fallback == 0);
  CHECK(four.values == 40 * 128);
  CHECK(four.rows == 2 * 16 * 128);
  CHECK(four.total() ==
        doctest::Approx(four.copies + four.start + four.lists + four.rescored + four.values + four.rows));
  CHECK(decode_bytes(kStep, Dtype::bf16, 64, 4, large_l2, kSeen).lists == 0);
  CHECK(decode_bytes(kStep, Dtype::bf16, 64, 8, small_l2, kSeen).copies ==
        doctest::Approx(2000.0 * (64 * 64 + 64 * 2 + 64 * 4) / 64));
  CHECK(decode_bytes(kStep, Dtype::bf16, 64, 0, small_l2, kSeen).copies == 2000 * 128);
  CHECK(dense_decode_bytes(kStep, Dtype::bf16) == 2 * 4000 * 128 + 2 * 16 * 128);
}

TEST_CASE("units of one key head read its keys once") {
  AttentionShape drafts = kStep;
  drafts.q_len = 4;  // 16 rows a key head: two units
  DecodeCounts seen = kSeen;
  seen.keys *= 2;  // of units
  seen.began *= 2;
  seen.screened *= 2;
  const DecodeBytes bytes = decode_bytes(drafts, Dtype::bf16, 64, 4, 1000, seen);
  const DecodeBytes one = decode_bytes(kStep, Dtype::bf16, 64, 4, 1000, kSeen);
  CHECK(bytes.copies == one.copies);
  CHECK(bytes.start == one.start);
  CHECK(bytes.lists == 2 * 300 * (4 + 4 * 8));
}

TEST_CASE("the dense pass reads each key once, and no copy") {
  const DecodeCounts seen{.keys = 4000, .fell_back = 4000, .values = 3000, .support = 9000};
  const DecodeBytes bytes = decode_bytes(kStep, Dtype::bf16, 64, 4, 1000, seen);
  CHECK(bytes.copies == 0);
  CHECK(bytes.start == 0);
  CHECK(bytes.fallback == 4000 * 128);
  CHECK(bytes.values == 3000 * 128);
  CHECK(bytes.total() == 7000 * 128 + bytes.rows);
}

TEST_CASE("a report's steps are those that were run, without peers") {
  const report::Report report = decode_report();
  REQUIRE(holds_decode_steps(report));
  const auto steps = decode_steps(report);
  REQUIRE(steps.size() == 1);
  CHECK(steps[0].case_id == "a0");
  CHECK(steps[0].launches == 2);
  CHECK(steps[0].shape == kStep);
  CHECK(steps[0].dram_bytes == 2e6);
  CHECK(std::isnan(steps[0].l2_bytes));
  CHECK(!holds_decode_steps(report::Report{}));
}

namespace {

// Steps of one implementation that take fixed + bytes / rate, exactly; the last one's rows are broad.
report::Report steps_on_a_line(double fixed, double rate) {
  report::Report report;
  const std::vector<double> bytes{1e6, 4e6, 2e7, 1e7};
  std::vector<double> seconds;
  for (const double b : bytes) seconds.push_back(fixed + b / rate);
  seconds.back() *= 10;
  const auto all = [&](const char* name, double value) {
    report.results.push_back(number_column(name, std::vector<double>(bytes.size(), value)));
  };
  report.results = {text_column("case_id", {"a0", "a1", "a2", "a3"}),
                    text_column("implementation", std::vector<std::string>(4, "decode/2-four-bits")),
                    text_column("dtype", std::vector<std::string>(4, "bfloat16")),
                    number_column("time_median", seconds),
                    number_column("dram_bytes_counted", bytes),
                    number_column("floor_time", {1e6 / 4e12, 4e6 / 4e12, 2e7 / 4e12, 1e7 / 4e12}),
                    number_column("copies_bytes", {7e5, 3e6, 1e7, 1e6}),
                    number_column("fallback_bytes", {0, 0, 0, 8e6}),
                    number_column("fell_back_share", {0, 0, 0, 0.7}),
                    number_column("layer", {0, 4, report::kMissing, report::kMissing})};
  for (const auto& [name, value] : {std::pair{"batch", 2.0},
                                    {"q_heads", 8},
                                    {"kv_heads", 2},
                                    {"q_len", 1},
                                    {"kv_len", 1000},
                                    {"head_dim", 64},
                                    {"alpha", 1.5},
                                    {"keys_screened", 2000},
                                    {"launches", 1},
                                    {"start_bytes", 1e5},
                                    {"lists_bytes", 0},
                                    {"rescored_bytes", 1e4},
                                    {"values_bytes", 2e4},
                                    {"candidates_share", 0.02},
                                    {"rescored_share", 0.01},
                                    {"support_mean", 7}})
    all(name, value);
  return report;
}

}  // namespace

TEST_CASE("what a step reads, and the line through the steps of a report") {
  const report::Report report = steps_on_a_line(40e-6, 2e12);
  const auto readings = step_readings(report);
  REQUIRE(readings.size() == 4);
  CHECK(readings[1].step.problem == "bfloat16, B 2, H 8/2, N 1/1000, d 64, alpha 1.5, layer 4");
  CHECK(readings[1].bytes.rows == doctest::Approx(4e6 - 3e6 - 1e5 - 1e4 - 2e4));
  CHECK(readings[1].bytes.total() == doctest::Approx(4e6));
  CHECK(readings[1].dense_bytes == dense_decode_bytes(kStep, Dtype::bf16));
  CHECK(readings[1].step.seconds - readings[1].floor == doctest::Approx(40e-6 + 4e6 / 2e12 - 4e6 / 4e12));
  const StepLine line = line_through(readings, "decode/2-four-bits");
  CHECK(line.steps == 3);  // without the broad one
  CHECK(line.fixed == doctest::Approx(40e-6));
  CHECK(line.rate == doctest::Approx(2e12));
  CHECK(std::isnan(line_through(readings, "decode/0-no-copy").fixed));
  const StepLine from_nothing = line_through(step_readings(steps_on_a_line(0, 2e12)), "decode/2-four-bits");
  CHECK(from_nothing.fixed == doctest::Approx(0).epsilon(1e-9));
  CHECK(from_nothing.rate == doctest::Approx(2e12));
}

TEST_CASE("what a step's time goes into, the largest gain first") {
  const auto readings = step_readings(steps_on_a_line(40e-6, 2e12));
  const StepLine line = line_through(readings, "decode/2-four-bits");
  const auto small = findings_of(readings[0], line);
  REQUIRE(small.size() == 2);
  CHECK(small[0].cause == "beyond DRAM");
  CHECK(small[0].gain == doctest::Approx(40.5 / 0.25));
  CHECK(small[0].sentence ==
        "its bytes take 0.25 of 40.5 us at DRAM's measured ceiling; over 3 steps of this report "
        "decode/2-four-bits takes 40 us whatever it reads, and reads at 2 TB/s");
  CHECK(small[1].cause == "DRAM");
  CHECK(small[1].sentence.starts_with("1 MB, "));
  CHECK(small[1].sentence.ends_with(
      ": what is screened 70 %, queries and results 17 %, the first and the last keys 10 %"));
  const auto broad = findings_of(readings[3], line);
  REQUIRE(broad.size() == 3);
  CHECK(broad[1].cause == "broad rows");
  CHECK(broad[1].gain == doctest::Approx(450e-6 / (40e-6 + 2e6 / 2e12)));
  // Where DRAM is nearly all of the time, it comes first.
  const auto fast = findings_of(step_readings(steps_on_a_line(0, 3.9e12))[1], StepLine{});
  CHECK(fast[0].cause == "DRAM");
}

TEST_CASE("a profiled step is the sum of its kernels, whatever they are called") {
  const auto steps = decode_steps(decode_report());
  const auto counted =
      match_counters({seen_kernel("screen", "1900000"), seen_kernel("solve", "98000")}, steps);
  REQUIRE(counted.size() == 1);
  const auto levels = compare_levels(counted[0]);
  REQUIRE(levels.size() == 1);  // FLOPs and L2 bytes are not counted
  CHECK(levels[0].level == Level::dram);
  CHECK(levels[0].counter == 2e6);
  CHECK(levels[0].close());
  CHECK_THROWS_AS(match_counters({seen_kernel("screen", "1")}, steps), InvalidArgument);  // half a step
}
