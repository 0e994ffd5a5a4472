#include <cmath>
#include <cstring>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "analysis/diagnosis.h"
#include "analysis/launches.h"
#include "analysis/machine.h"
#include "core/error.h"
#include "experiments/foreign/array_values.h"
#include "experiments/foreign/bench_report.h"
#include "experiments/foreign/flashinfer.h"
#include "experiments/foreign/floor.h"
#include "experiments/foreign/ptx_counting.h"
#include "experiments/runner/project_root.h"

using namespace splash;
using namespace splash::experiments;
using nlohmann::json;

namespace {

json declared() {
  return {{"sizes", {{"n", 100000}}},
          {"arrays",
           {{{"name", "x"},
             {"dtype", "float32"},
             {"role", "input"},
             {"shape", {100000}},
             {"low", -1},
             {"high", 1}},
            {{"name", "y"},
             {"dtype", "float32"},
             {"role", "output"},
             {"shape", {100000}},
             {"low", 0},
             {"high", 0}}}},
          {"flops", 2e5},
          {"bytes", -1},
          {"unit", "float32"},
          {"relative", -1},
          {"absolute", -1},
          {"device", "NVIDIA H100 80GB HBM3"},
          {"compute_capability", 90},
          {"multiprocessors", 132},
          {"cache_bytes", 50 << 20}};
}

report::Ceiling ceiling(const char* name, const char* dtype, const char* units, double measured,
                        double datasheet) {
  return {.name = name,
          .dtype = dtype,
          .units = units,
          .method = "made up",
          .measured = measured,
          .low = measured,
          .high = measured,
          .datasheet = datasheet};
}

std::vector<report::Ceiling> h100() {
  return {ceiling("dram copy", "", "bytes/s", 2.8e12, 3.35e12),
          ceiling("dram read", "", "bytes/s", 3.0e12, 3.35e12),
          ceiling("l2 read", "", "bytes/s", 6e12, report::kMissing),
          ceiling("shared read", "", "bytes/s", 3.1e13, report::kMissing),
          ceiling("fma", "float32", "FLOP/s", 6e13, 6.7e13),
          ceiling("exponentials", "", "1/s", 3.7e12, report::kMissing),
          ceiling("tensor", "float16", "FLOP/s", 7e14, 9.9e14),
          ceiling("launch", "", "s", 2.2e-6, report::kMissing),
          ceiling("graph node", "", "s", 1.2e-6, report::kMissing)};
}

// What splash bench would have found of a kernel on an H100.
struct Seen {
  double seconds, flops, bytes;
  analysis::KernelUse use;
  CountedWork counted{};
};

std::string verdict(const Seen& seen) {
  BenchResult result;
  json kernel = declared();
  kernel["flops"] = seen.flops;
  kernel["bytes"] = seen.bytes;
  result.kernel = parse_kernel(kernel);
  result.seconds.assign(10, seen.seconds);
  result.clock_hz = 1.755e9;
  if (seen.use.blocks > 0) {
    analysis::Launch launch;
    launch.use = seen.use;
    result.launches = {launch};
  }
  result.counted = seen.counted;
  const report::Report report = bench_report({{.implementation = "mine", .result = result}}, {}, h100());
  const auto machine =
      analysis::machine_of("NVIDIA H100 80GB HBM3", analysis::read_machines(machines_folder()))
          .multiprocessors;
  const auto kernels = analysis::kernel_cases(report);
  REQUIRE(kernels.size() == 1);
  const auto diagnosis = analysis::diagnose(kernels.front(), machine, report.ceilings, kernels);
  return fmt::format("{}: {}", analysis::to_string(diagnosis.findings.front().cause),
                     diagnosis.findings.front().sentence);
}

CountedWork counts(double passes, double conflicts, double sectors, double bytes, double instructions,
                   double special = 0) {
  return {passes, conflicts, sectors / 2, bytes / 2, sectors / 2, bytes / 2, instructions, special};
}

}  // namespace

TEST_CASE("a declaration is read and limited") {
  const ForeignKernel kernel = parse_kernel(declared());
  CHECK(kernel.bytes == 8e5);
  CHECK(kernel.relative == 1e-4);
  CHECK(kernel.problem() == "n 100000");
  CHECK(kernel.arrays[1].offset % 256 == 0);
  CHECK(kernel.arrays[1].offset >= 400000);
  const auto refused = [](const char* pointer, const json& value) {
    json changed = declared();
    changed[json::json_pointer(pointer)] = value;
    try {
      parse_kernel(changed);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("taken");
  };
  CHECK(refused("/arrays/0/shape", {1 << 30, 1 << 30, 1 << 30}).find("too large") != std::string::npos);
  CHECK(refused("/arrays/0/shape", {-1}).find("whole number") != std::string::npos);
  CHECK(refused("/arrays/0/shape", {0}).find("is empty") != std::string::npos);
  CHECK(refused("/arrays/0/dtype", "float8").find("there are float64, float32") != std::string::npos);
  CHECK(refused("/arrays/1/name", "x").find("two arrays 'x'") != std::string::npos);
  CHECK(refused("/arrays/1/role", "input").find("no output") != std::string::npos);
  CHECK(refused("/flops", -1).find("0 or more") != std::string::npos);
  CHECK(refused("/unit", "float4").find("is no unit") != std::string::npos);
  CHECK(refused("/sizes", json::array()).find("sizes") != std::string::npos);
  CHECK(refused("/device", std::string(1000, 'x')).find("up to 200 bytes") != std::string::npos);
  CHECK(refused("/device", "x\x1b[2J") == "taken");
}

TEST_CASE("inputs are drawn from the seed, and poison is found again") {
  for (const char* dtype :
       {"float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"}) {
    CAPTURE(dtype);
    json kernel = declared();
    for (const int i : {0, 1}) kernel["arrays"][i]["dtype"] = dtype;
    kernel["arrays"][0]["low"] = 0;
    kernel["arrays"][0]["high"] = 4;
    const ForeignKernel parsed = parse_kernel(kernel);
    const ForeignArray &x = parsed.arrays[0], &y = parsed.arrays[1];
    std::vector<char> first(static_cast<std::size_t>(x.bytes)), again(first.size()), other(first.size());
    fill(x, 1, first.data());
    fill(x, 1, again.data());
    fill(x, 2, other.data());
    CHECK(first == again);
    CHECK(first != other);
    double low = 9, high = -9, sum = 0;
    for (int64_t i = 0; i < x.count; ++i) {
      const double value = value_at(x, i, first.data());
      low = std::min(low, value);
      high = std::max(high, value);
      sum += value / static_cast<double>(x.count);
    }
    const bool boolean = x.type == ElementType::boolean;
    CHECK(low >= 0);
    CHECK(low < 0.01);
    CHECK(high <= (boolean ? 1 : 4));
    CHECK(high > (boolean ? 0.9 : 3.9));
    CHECK(sum == doctest::Approx(boolean ? 0.5 : 2).epsilon(0.02));
    fill(y, 3, first.data());
    const bool told = is_floating(y.type) || bytes_of(y.type) > 2;
    CHECK(still_poisoned(y, 3, first.data()) == (told ? y.count : 0));
    CHECK(still_poisoned(y, 4, first.data()) < y.count / 8);
    if (is_floating(y.type)) CHECK(std::isnan(value_at(y, 5, first.data())));
  }
}

TEST_CASE("outputs are compared, and a check that tells nothing says so") {
  const ForeignArray y = parse_kernel(declared()).arrays[1];
  std::vector<float> values{1, 2, 3, 4, 5, 6, 7, 8};
  const auto* memory = reinterpret_cast<const char*>(values.data());
  const std::vector<int64_t> indices{0, 1, 2, 3, 4, 5, 6, 7};
  const std::vector<double> expected{1, 2, 3, 4, 5, 6, 7, 8.01};
  const Comparison strict = compare(y, memory, indices, expected, 1e-4, -1);
  CHECK(strict.wrong == 1);
  CHECK(strict.example == "y[7] is 8 and should be 8.01");
  CHECK(strict.tells);
  CHECK(strict.max_absolute == doctest::Approx(0.01));
  CHECK(compare(y, memory, indices, expected, 1e-2, -1).wrong == 0);
  CHECK_FALSE(compare(y, memory, indices, expected, 0, 10).tells);
  values[0] = NAN;
  CHECK(compare(y, memory, indices, expected, 1, 1e9).wrong == 1);
  CHECK(indices_to_check(5, 8, 1) == std::vector<int64_t>{0, 1, 2, 3, 4});
  const auto drawn = indices_to_check(1 << 20, 100, 1);
  CHECK(drawn.size() == 100);
  CHECK(drawn.front() == 0);
  CHECK(drawn.back() == (1 << 20) - 1);
  CHECK(drawn != indices_to_check(1 << 20, 100, 2));
}

TEST_CASE("no call is shorter than its work at the data sheet's rates") {
  json declaration = declared();
  declaration["bytes"] = 1e9;
  declaration["arrays"][1]["shape"] = {1 << 26};
  ForeignKernel kernel = parse_kernel(declaration);
  const Floor cold = floor_of(kernel, h100(), true);
  CHECK(cold.seconds ==
        doctest::Approx((1e9 - (50 << 20)) / 3.35e12));  // what L2 can hold of the output may stay there
  CHECK(cold.of == "DRAM at the data sheet's 3.35e+12 bytes/s");
  kernel.flops = 1e12;
  CHECK(floor_of(kernel, h100(), true).seconds == doctest::Approx(1e12 / 6.7e13));
  kernel.flops = 0;
  kernel.set_bytes = 1 << 20;
  CHECK(floor_of(kernel, h100(), false).seconds == doctest::Approx(1e9 / (1.05 * 6e12)));
  CHECK(std::isnan(floor_of(kernel, {}, true).seconds));
}

TEST_CASE("kernels of known cause are diagnosed from what bench alone knows") {
  const analysis::KernelUse full{.blocks = 1 << 18, .threads = 256, .registers = 16};
  const double n = 1 << 26;
  CHECK(verdict({.seconds = 12 * n / 2.7e12,
                 .flops = 2 * n,
                 .bytes = 12 * n,
                 .use = full,
                 .counted = counts(0, 0, 12 * n / 32, 12 * n, 20 * n / 32)})
            .starts_with("DRAM: DRAM is at 90"));
  // A transposition: 8 KB a tile of 1024 elements, 33 passes for a warp's row and column.
  const double tiles = n / 1024, passes = 33 * 32 * tiles;
  const std::string banks = verdict(
      {.seconds = passes / (132 * 1.755e9 * 0.95),
       .flops = 0,
       .bytes = 8 * n,
       .use = {.blocks = static_cast<int64_t>(tiles), .threads = 256, .registers = 20, .shared_bytes = 4096},
       .counted = counts(passes, passes - 64 * tiles, 8 * n / 32, 8 * n, 30 * n / 32)});
  CHECK(banks.starts_with("shared memory: shared memory is at 95"));
  CHECK(banks.find("93.9 % of the passes through shared memory are bank conflicts") != std::string::npos);
  CHECK(verdict({.seconds = 3e-4,
                 .flops = 2.0 * 256 * 256 * 4096,
                 .bytes = 9e6,
                 .use = {.blocks = 16, .threads = 256, .registers = 40, .shared_bytes = 8256}})
            .starts_with("too little parallelism: its 16 blocks leave 116 of 132"));
  const std::string waits =
      verdict({.seconds = 3e-4,
               .flops = 8 * n / 4,
               .bytes = 8 * n / 4,
               .use = {.blocks = 1056, .threads = 64, .registers = 40, .shared_bytes = 120 << 10},
               .counted = counts(0, 0, 8 * n / 4 / 32, 8 * n / 4, 20 * n / 4 / 32, 3 * n / 4 / 32)});
  CHECK(waits.starts_with("latency: where blocks are resident"));
  CHECK(verdict({.seconds = 1024 * n / 4 / 5.4e13, .flops = 1024 * n / 4, .bytes = 8 * n / 4, .use = full})
            .starts_with("products: the float32 units are at 90"));
  const std::string unknown =
      verdict({.seconds = 3e-4, .flops = 8 * n / 4, .bytes = 8 * n / 4, .use = {.blocks = 0}});
  CHECK(unknown.find("how many warps are resident is not known") != std::string::npos);
  CHECK(
      verdict({.seconds = 3e-6, .flops = 1e4, .bytes = 1e4, .use = full}).find("starting the kernel takes") !=
      std::string::npos);
}

TEST_CASE("PTX is made to count") {
  const std::string ptx =
      ".func splash_bench_block(\n)\n{\n\tst.global.u32 \t[%rd1], %r1;\n}\n"
      ".visible .entry mine(\n\t.param .u64 p\n)\n{\n\t.reg .b32 \t%r<9>;\n\tld.param.u64 \t%rd1, "
      "[p];\n\tmov.u32 \t%r1, %tid.x;\n"
      "\tld.global.v4.f32 \t{%f1, %f2, %f3, %f4}, [%rd1+16];\n\t@%p1 st.shared.f32 \t[tile+-4], "
      "%f1;\n\tex2.approx.f32 \t%f5, %f1;\n"
      "\t@%p1 bra \t$L__BB0_2;\n\n$L__BB0_2:\n\tret;\n\n}\n";
  const CountingPtx counting = with_counting(ptx);
  CHECK(counting.counts_shared);
  CHECK(counting.counts_global);
  const std::string& text = counting.text;
  const auto times = [&](const std::string& words) {
    int count = 0;
    for (std::size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++count;
    return count;
  };
  CHECK(times("call splash_bench_global") == 1);
  CHECK(times("add.s64 %splash_address, %splash_address, 16;") == 1);
  CHECK(times("st.param.b32 [splash_1+0], 16;\n") == 1);  // four floats
  CHECK(times("@%p1 call splash_bench_shared") == 1);
  CHECK(times("add.s32 %splash_address, %splash_address, -4;") == 1);
  CHECK(times("call splash_bench_block") == 2);
  CHECK(times("st.param.b32 [splash_0+0], 4;\n.param .b32 splash_1;\nst.param.b32 [splash_1+0], 1;") ==
        1);  // of them one special
  CHECK(times("\tret;") == 1);
  const std::string nested =
      with_counting(
          ".entry k(\n)\n{\n\t// begin inline asm\n{\n\tadd.s32 %r1, %r1, 1;\n}\n\t// end inline asm\n"
          "\tld.global.f32 %f1, [%rd1];\n\tret;\n}\n")
          .text;
  CHECK(nested.find("call splash_bench_global") != std::string::npos);
  CHECK_FALSE(
      with_counting(".entry k(\n)\n{\n\tcp.async.ca.shared.global [%r1], [%rd1], 16;\n}\n").counts_shared);
  CHECK_FALSE(with_counting(".entry k(\n)\n{\n\tld.f32 %f1, [%rd1];\n}\n").counts_global);
}

TEST_CASE("a trace says what came of a workload") {
  const FlashinferWorkload workload{"abc",
                                    {{"uuid", "abc"}, {"axes", {{"m", 4}}}, {"inputs", json::object()}}};
  BenchResult result;
  result.seconds = {1e-3, 2e-3, 3e-3};
  result.reference_seconds = 8e-3;
  result.max_absolute = 0.5;
  Evaluated evaluated{.result = &result, .hardware = "NVIDIA H200"};
  json evaluation = trace_of("d", "s", workload, evaluated, "now")["evaluation"];
  CHECK(evaluation["status"] == "PASSED");
  CHECK(evaluation["performance"]["latency_ms"] == 2);
  CHECK(evaluation["performance"]["speedup_factor"] == 4);
  CHECK(evaluation["environment"]["hardware"] == "NVIDIA_H200");
  result.findings = {{Against::wrong, "the result is wrong"}};
  evaluation = trace_of("d", "s", workload, evaluated, "now")["evaluation"];
  CHECK(evaluation["status"] == "INCORRECT_NUMERICAL");
  CHECK(evaluation["performance"].is_null());
  CHECK(evaluation["correctness"]["max_absolute_error"] == 0.5);
  result.findings = {{Against::contradiction, "work goes on"}};
  evaluation = trace_of("d", "s", workload, evaluated, "now")["evaluation"];
  CHECK(evaluation["status"] == "RUNTIME_ERROR");
  CHECK(evaluation["log"] == "work goes on");
  CHECK(evaluation["correctness"].is_null());
  const auto failed = [&](const char* why) {
    return trace_of("d", "s", workload, {.failure = why, .hardware = "", .libraries = ""},
                    "now")["evaluation"]["status"];
  };
  CHECK(failed("the kernel: TypeError: 'y' has the shape [3], not [4]") == "INCORRECT_SHAPE");
  CHECK(failed("the kernel did not answer within 120 s") == "TIMEOUT");
  CHECK(failed("the process of the kernel ended") == "RUNTIME_ERROR");
}
