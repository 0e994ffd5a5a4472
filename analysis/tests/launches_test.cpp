#include "analysis/launches.h"

#include <cmath>

#include <doctest/doctest.h>

#include "analysis/diagnosis.h"
#include "analysis/tests/example_kernels.h"

using namespace splash;
using namespace splash::analysis;
using namespace splash::report;
using namespace splash::analysis::testing;

namespace {

std::vector<Ceiling> ceilings() {
  return {ceiling("dram copy", "", 4e12),  ceiling("dram read", "", 4e12), ceiling("l2 read", "", 1e13),
          ceiling("fma", "float32", 6e13), ceiling("launch", "", 2.5e-6),  ceiling("graph node", "", 5e-7),
          ceiling("shared read", "", 3e13)};
}

// Two launches: a mask kernel that multiplies, with one block of 8 warps per multiprocessor, and a look-up
// kernel with far more threads.
KernelCase kernel() {
  KernelCase k;
  k.unit = "float32";
  k.seconds = 1e-3;
  k.launches = 2;
  k.kernel = "look_up";
  k.use = {.blocks = 8192, .threads = 128, .registers = 32, .shared_bytes = 0};
  k.all = {{.kernel = "build_mask",
            .use = {.blocks = 500, .threads = 256, .registers = 0, .shared_bytes = 166000},
            .flops = 6e9,
            .l2_bytes = 1e8},
           {.kernel = "look_up", .use = k.use, .flops = 0, .l2_bytes = 2e7}};
  k.flops = 6e9;
  k.l2_bytes = 1.2e8;
  k.dram_bytes = 1e6;
  k.exponentials = 0;
  return k;
}

}  // namespace

TEST_CASE("the launch that takes longest is spoken of, not the one with most threads") {
  KernelCase k = kernel();
  describe_longest(k, kMachine, ceilings());
  CHECK(k.kernel == "build_mask");
  CHECK(k.use.shared_bytes == 166000);
  CHECK_FALSE(k.launches_seen);
  CHECK(k.all[0].seconds > 20 * k.all[1].seconds);
  CHECK(k.all[0].seconds + k.all[1].seconds == doctest::Approx(k.seconds - 3e-6));

  const Diagnosis diagnosis = diagnose(k, kMachine, ceilings());
  CAPTURE(diagnosis.findings.front().sentence);
  CHECK(diagnosis.findings.front().sentence.find("8 of 64 warps of build_mask, the longest of 2 kernels "
                                                 "(99.4 % of the time, estimated from work and "
                                                 "resident warps), are resident (limited by shared memory: "
                                                 "166 KB a block, so one of 8 warps fits)") !=
        std::string::npos);
}

TEST_CASE("where a profiler saw each launch its times tell, not the estimate") {
  KernelCase k = kernel();
  k.all[0].seen_seconds = 1e-4;
  describe_longest(k, kMachine, ceilings());
  CHECK(k.kernel == "build_mask");  // one launch's time alone decides nothing
  k.all[1].seen_seconds = 3e-4;
  describe_longest(k, kMachine, ceilings());
  CHECK(k.kernel == "look_up");
  CHECK(k.launches_seen);
  CHECK(k.all[1].seconds == doctest::Approx(0.75 * (k.seconds - 3e-6)));
  CHECK(diagnose(k, kMachine, ceilings()).findings.front().sentence.find("by counters") != std::string::npos);
}

TEST_CASE("where nothing tells of the launches the one with most threads is named as that") {
  KernelCase k = kernel();
  k.all.clear();
  describe_longest(k, kMachine, ceilings());
  CHECK(k.kernel == "look_up");
  CHECK(longest_launch(k) == nullptr);
  CHECK(diagnose(k, kMachine, ceilings())
            .findings.front()
            .sentence.find("of look_up, of 2 kernels the one with most threads,") != std::string::npos);
}

TEST_CASE("registers that are not known admit at most so many blocks") {
  KernelCase k = kernel();
  k.all[0].use.shared_bytes = 60000;  // three blocks fit, if registers allow them
  describe_longest(k, kMachine, ceilings());
  const std::string sentence = diagnose(k, kMachine, ceilings()).findings.front().sentence;
  CHECK(sentence.find("at most 24 of 64 warps of build_mask") != std::string::npos);
}

TEST_CASE("launches in units of their own take the ceilings of these") {
  KernelCase k = kernel();
  k.unit = "bfloat16";
  std::vector<Ceiling> of_both = ceilings();
  of_both.push_back(ceiling("tensor", "bfloat16", 6e14));
  CHECK(floors_of(k, of_both).products == doctest::Approx(1e-5));
  k.all[0].unit = "float32";
  k.all[0].flops = 2e9;
  CHECK(floors_of(k, of_both).products == doctest::Approx(2e9 / 6e13 + 4e9 / 6e14));
  CHECK(parse_launches(launches_text(k.all))[0].unit == "float32");
  CHECK(parse_launches(launches_text(k.all))[1].unit.empty());
  describe_longest(k, kMachine, of_both);
  CHECK(k.kernel == "build_mask");
}

TEST_CASE("launches come out of a report's text as they went in, and what is none is refused") {
  const std::vector<Launch> launches = parse_launches(launches_text(kernel().all));
  REQUIRE(launches.size() == 2);
  CHECK(launches[0].kernel == "build_mask");
  CHECK(launches[0].use.blocks == 500);
  CHECK(launches[0].use.shared_bytes == 166000);
  CHECK(launches[0].flops == 6e9);
  CHECK(launches[1].use.registers == 32);
  CHECK(std::isnan(launches[0].seen_seconds));
  CHECK(parse_launch_seconds(launch_seconds_text({1e-6, 2.5e-4})) == std::vector<double>{1e-6, 2.5e-4});
  for (
      const char* text :
      {"", "{", "{}", "[1]", "[{}]", R"([{"kernel": 3}])", "[[[[[[",
       R"([{"kernel": "a", "blocks": -1, "threads": 32, "registers": 0, "shared_bytes": 0}])",
       R"([{"kernel": "a", "blocks": 1e300, "threads": 32, "registers": 0, "shared_bytes": 0}])",
       R"([{"kernel": "a", "blocks": 0, "threads": 32, "registers": 0, "shared_bytes": 0, "executed_flops": 0,
             "l2_bytes": 0, "dram_bytes": 0, "exponentials": 0}])"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(parse_launches(text), ReportError);
  }
  CHECK_THROWS_AS(parse_launch_seconds(R"(["a"])"), ReportError);
  CHECK_THROWS_AS(parse_launch_seconds("[-1]"), ReportError);
}
