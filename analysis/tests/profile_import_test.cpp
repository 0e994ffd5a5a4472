// From a profiler's table to a report, and what is said of what cannot be.

#include "analysis/profile_import.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "analysis/impossible.h"
#include "analysis/profiled_kernel.h"
#include "analysis/tests/example_kernels.h"
#include "analysis/tests/example_tables.h"

using namespace splash;
using namespace splash::analysis;
using namespace splash::analysis::testing;

namespace {

const std::vector<Machine>& machines() {
  static const std::vector<Machine> all = read_machines(SPLASH_SOURCE_DIR "/data/machines");
  return all;
}

std::vector<ProfiledCase> cases_of(const Table& table) {
  return profiled_cases(parse_ncu(csv(table)).kernels);
}

std::vector<Printed> with(std::vector<Printed> metrics, const Printed& changed) {
  for (Printed& metric : metrics) {
    if (metric.name != changed.name) continue;
    metric = changed;
    return metrics;
  }
  metrics.push_back(changed);
  return metrics;
}

// All that impossible() says of one launch with these metrics on an H200.
std::string said(const std::vector<Printed>& metrics, const PrintedLaunch& launch = {}) {
  PrintedLaunch one = launch;
  one.metrics = metrics;
  const auto kernels = parse_ncu(csv(raw_page({one}))).kernels;
  const std::vector<ProfiledCase> cases = profiled_cases(kernels);
  return fmt::format(
      "{}",
      fmt::join(impossible(cases[0], gpu_of(kernels, cases, "NVIDIA H200", machines()), machines()), "\n"));
}

}  // namespace

TEST_CASE("launches of one kernel with one grid and block are one case: median, least and largest") {
  std::vector<PrintedLaunch> launches;
  for (const char* us : {"180.00", "190.00", "1,700.00"}) {
    launches.push_back({.id = std::to_string(launches.size()), .metrics = streaming_labels(us)});
    launches.push_back(
        {.id = std::to_string(launches.size()), .grid = "(64, 1, 1)", .metrics = streaming_labels(us)});
  }
  launches.push_back({.id = "0", .process = "5000", .metrics = streaming_labels("20.00")});
  const std::vector<ProfiledCase> cases = cases_of(details_page(launches));
  REQUIRE(cases.size() == 3);
  CHECK(cases[0].launches == 3);
  CHECK(cases[0].counters.seconds == doctest::Approx(190e-6));
  CHECK(cases[0].least == doctest::Approx(180e-6));
  CHECK(cases[0].most == doctest::Approx(1700e-6));
  CHECK(cases[0].use.blocks == 65536);
  CHECK(cases[1].use.blocks == 64);
  CHECK(cases[2].process == "5000");
  CHECK(cases[2].seconds.size() == 1);
}

TEST_CASE("pages of one profile tell the same of a kernel, each by its own names") {
  const std::vector<ProfiledCase> details = cases_of(details_page({{.metrics = streaming_labels()}})),
                                  raw = cases_of(raw_page({{.metrics = streaming_metrics()}}));
  for (const auto& cases : {details, raw}) {
    const ProfiledCase& c = cases.at(0);
    CHECK(c.implementation == "saxpy");
    CHECK(c.counters.seconds == doctest::Approx(181.25e-6));
    CHECK(c.counters.clock_hz == doctest::Approx(1.75e9));
    CHECK(c.counters.dram_share == doctest::Approx(0.921));
    CHECK(c.counters.l1_share == doctest::Approx(0.2504));
    CHECK(c.counters.l2_share == doctest::Approx(0.4012));
    CHECK(c.counters.sm_share == doctest::Approx(0.1201));
    CHECK(c.dram_bytes == doctest::Approx(805e6).epsilon(0.001));  // printed, or bandwidth times time
    CHECK(c.use.registers == 16);
    CHECK(c.counters.multiprocessors == 132);
  }
}

TEST_CASE("kernels of one function are named with their template arguments, others without") {
  const auto names = [](const std::vector<std::string>& printed) {
    std::vector<PrintedLaunch> launches;
    for (const std::string& name : printed)
      launches.push_back(
          {.id = std::to_string(launches.size()), .name = name, .metrics = streaming_labels()});
    std::vector<std::string> result;
    for (const ProfiledCase& c : cases_of(details_page(launches))) result.push_back(c.implementation);
    return result;
  };
  CHECK(names({"void a::gemm<(int)64, float>(float *)"}) == std::vector<std::string>{"gemm"});
  CHECK(names({"void a::gemm<(int)64, b::C<float>>(float *)", "void a::gemm<(int)128>(float *)",
               "copy(int)"}) ==
        std::vector<std::string>{"gemm<(int)64, b::C<float>>", "gemm<(int)128>", "copy"});
}

TEST_CASE("FLOPs are those of the units that multiply") {
  std::vector<Printed> metrics = streaming_metrics();
  for (const auto& [op, count] : {std::pair("ffma", "1,000,000"), {"fadd", "10"}, {"fmul", "7"}})
    metrics.push_back(
        {"", fmt::format("smsp__sass_thread_inst_executed_op_{}_pred_on.sum", op), "inst", count});
  const ProfiledCase scalar = cases_of(raw_page({{.metrics = metrics}})).at(0);
  CHECK(scalar.unit == "float32");
  CHECK(scalar.flops == 2000017);
  metrics.push_back({"", "sm__ops_path_tensor_src_fp16.sum", "", "0"});
  metrics.push_back({"", "sm__ops_path_tensor_src_bf16_dst_fp32.sum", "", "4,096,000"});
  const ProfiledCase tensor = cases_of(raw_page({{.metrics = metrics}})).at(0);
  CHECK(tensor.unit == "bfloat16");
  CHECK(tensor.flops == 4096000);
}

TEST_CASE("of --set roofline the FLOPs per cycle tell the FLOPs") {
  std::vector<Printed> metrics = streaming_metrics("100.00");
  metrics.push_back({"", "derived__sm__sass_thread_inst_executed_op_ffma_pred_on_x2", "inst", "1,000.00"});
  metrics.push_back(
      {"", "sm__sass_thread_inst_executed_op_fadd_pred_on.sum.per_cycle_elapsed", "inst/cycle", "24.00"});
  CHECK(cases_of(raw_page({{.metrics = metrics}})).at(0).flops == doctest::Approx(1024 * 1.75e9 * 100e-6));
}

TEST_CASE("a GPU is told by name, by the table, or by compute capability and multiprocessors") {
  const auto gpu = [](std::vector<Printed> metrics, const char* asked) {
    const auto kernels = parse_ncu(csv(raw_page({{.metrics = std::move(metrics)}}))).kernels;
    return gpu_of(kernels, profiled_cases(kernels), asked, machines());
  };
  CHECK(gpu(streaming_metrics(), "NVIDIA H200").machine->name == "NVIDIA H200 SXM");
  std::vector<Printed> named = streaming_metrics();
  named.push_back({"", "device__attribute_display_name", "", "NVIDIA H200"});
  CHECK(gpu(named, "").name == "NVIDIA H200");
  const ProfiledGpu unknown = gpu(streaming_metrics(), "");
  CHECK(unknown.name == "GPU of compute capability 9.0 with 132 multiprocessors");
  CHECK(unknown.multiprocessors->warps == 64);
  CHECK(std::isnan(datasheet_ceilings(unknown)[0].datasheet));
  CHECK(tells(message_of([&] { gpu(streaming_metrics(), "NVIDIA L4"); }),
              "is of a GPU of compute capability 9.0, and NVIDIA L4 has 8.9"));
  std::vector<Printed> bare = streaming_metrics();
  std::erase_if(bare, [](const Printed& metric) { return metric.name == "launch__sm_count"; });
  CHECK(tells(message_of([&] { gpu(bare, ""); }), "name it with --gpu (data/machines describes"));
  CHECK(tells(message_of([&] { gpu(bare, "NVIDIA H2000"); }), "no file of data/machines describes the GPU"));
}

TEST_CASE("a table without a time, a grid or a metric's unit is refused with the reason") {
  std::vector<Printed> timeless = streaming_metrics(),
                       unitless = with(streaming_metrics(), {"", "dram__bytes_read.sum", "", "5"});
  std::erase_if(timeless, [](const Printed& metric) { return metric.name == "gpu__time_duration.sum"; });
  CHECK(tells(message_of([&] { cases_of(raw_page({{.metrics = timeless}})); }),
              "it needs the metric gpu__time_duration"));
  CHECK(tells(message_of([&] { cases_of(raw_page({{.grid = "", .metrics = streaming_metrics()}})); }),
              "does not tell the grid and block of saxpy"));
  CHECK(message_of([&] { cases_of(raw_page({{.metrics = unitless}})); }) ==
        "the metric dram__bytes_read.sum comes in the unit '', which is none of byte to Tbyte");
}

TEST_CASE("nothing is said of a table in which everything can be") {
  CHECK(said(streaming_metrics()).empty());
}

TEST_CASE("what cannot be is said, with its likely cause") {
  const auto one = [](const Printed& changed) { return said(with(streaming_metrics(), changed)); };
  CHECK(tells(one({"", "dram__bytes_read.sum", "Gbyte", "536.87"}),
              "where NVIDIA H200 reaches 4.8 TB/s; likely the notation"));
  CHECK(tells(one({"", "dram__bytes_read.sum", "Gbyte", "1.50"}), "likely another launch"));
  CHECK(tells(one({"", "gpu__time_duration.sum", "us", "100.00"}),
              "DRAM: 805 MB in 100 us are 8.05 TB/s where"));
  CHECK(tells(one({"", "dram__bytes_write.sum", "Mbyte", "-268.13"}),
              "is below zero; likely the notation: a sign"));
  CHECK(tells(one({"", "dram__throughput.avg.pct_of_peak_sustained_elapsed", "%", "9210.00"}),
              "DRAM, share of its peak: 9210 % is more than all of it; likely the notation"));
  CHECK(tells(one({"", "lts__throughput.avg.pct_of_peak_sustained_elapsed", "%", "104.20"}),
              "L2, share of its peak: 104.2 % is more than all of it; likely another launch"));
  CHECK(tells(one({"", "dram__throughput.avg.pct_of_peak_sustained_elapsed", "%", "20.00"}),
              "the table's share is 20 %, its bytes over its time are 92.5 %"));
  CHECK(tells(one({"", "smsp__inst_executed.sum", "inst", "5,767,168,000"}),
              "instructions: 34.44 times what 132 multiprocessors can issue"));
  CHECK(tells(one({"", "launch__sm_count", "SM", "108"}),
              "of 108 multiprocessors, and NVIDIA H200 has 132; likely another GPU"));
  CHECK(tells(one({"", "launch__registers_per_thread", "register/thread", "512"}), "255 is the most"));
  CHECK(tells(one({"", "sm__cycles_elapsed.avg.per_second", "Ghz", "17.50"}), "a clock of 17.5 GHz"));
  CHECK(tells(one({"", "launch__shared_mem_per_block_dynamic", "Kbyte/block", "400.00"}),
              "not one block fits"));
  CHECK(tells(said(streaming_metrics(), {.block = "(65536, 1, 1)", .grid = "(256, 1, 1)"}),
              "1024 is the most"));
  std::vector<Printed> flops = streaming_metrics();
  flops.push_back({"", "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum", "inst", "12,000,000,000"});
  CHECK(tells(said(flops),
              "products: 132 TFLOP/s in float32 where NVIDIA H200 reaches 67 TFLOP/s; likely the precision"));
}

TEST_CASE("a report of imported kernels holds what the table told, and is read back as profiled kernels") {
  std::vector<PrintedLaunch> launches;
  for (int i = 0; i < 7; ++i)
    launches.push_back({.id = std::to_string(i), .metrics = streaming_labels(fmt::format("{}.50", 180 + i))});
  launches.push_back({.id = "8", .name = "other(int)", .metrics = streaming_labels()});
  const auto kernels = parse_ncu(csv(details_page(launches))).kernels;
  const std::vector<ProfiledCase> cases = profiled_cases(kernels);
  const ProfiledGpu gpu = gpu_of(kernels, cases, "NVIDIA H200", machines());
  const report::Report report = profiled_report(cases, gpu, datasheet_ceilings(gpu));
  const std::vector<KernelCase> read = kernel_cases(report);
  REQUIRE(read.size() == 2);
  CHECK(read[0].profiled);
  CHECK(read[0].implementation == "saxpy");
  CHECK(read[0].problem == "saxpy(int, float, const float *, float *), 65536 blocks x 256 threads");
  CHECK(read[0].seconds == doctest::Approx(183.5e-6));
  CHECK(read[0].seconds_low == doctest::Approx(180.5e-6));  // of seven launches
  CHECK(std::isnan(read[1].seconds_low));                   // of one
  CHECK(read[0].seen.dram == doctest::Approx(0.921));
  CHECK(read[0].case_id != read[1].case_id);
  CHECK(report.find("time")->width == 7);
  CHECK(profiled_multiprocessors(report)->count == 132);
  const report::Report twin = profiled_report(cases_of(details_page(launches)), gpu, {});
  CHECK(twin.find("case_id")->texts == report.find("case_id")->texts);
}
