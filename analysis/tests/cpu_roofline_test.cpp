#include "analysis/cpu_roofline.h"

#include <cmath>

#include <doctest/doctest.h>

#include "analysis/tests/example_kernels.h"

using namespace splash;
using namespace splash::analysis;
using namespace splash::report;
using namespace splash::analysis::testing;

namespace {

Column texts_of(const char* name, std::vector<std::string> texts) {
  Column column;
  column.info = {.name = name, .units = "text", .long_name = name, .formula = "", .is_text = true};
  column.texts = std::move(texts);
  return column;
}

Column numbers_of(const char* name, std::vector<double> numbers) {
  Column column;
  column.info = {.name = name, .units = "1", .long_name = name, .formula = ""};
  column.numbers = std::move(numbers);
  return column;
}

// One implementation and one peer, whose work is not counted.
Report cpu_report() {
  Report report;
  report.results = {texts_of("case_id", {"c0", "c1"}),
                    texts_of("implementation", {"screened", "torch-softmax"}),
                    texts_of("pass", {"forward", "forward"}),
                    texts_of("math_unit", {"cpu float32", ""}),
                    numbers_of("n", {2048, 2048}),
                    numbers_of("heads", {8, 8}),
                    numbers_of("head_dim", {64, 64}),
                    numbers_of("causal", {1, 0}),
                    numbers_of("threads", {2, 2}),
                    numbers_of("time_median", {0.04, 0.05}),
                    numbers_of("useful_flops", {8e9, kMissing}),
                    numbers_of("executed_flops", {4e9, kMissing}),
                    numbers_of("l2_bytes_counted", {2e8, kMissing}),
                    numbers_of("dram_bytes_counted", {1.6e7, kMissing})};
  report.ceilings = {ceiling("fma", "float32", 6e13),     ceiling("cpu fma", "float64", 1e11),
                     ceiling("cpu fma", "float32", 2e11), ceiling("cpu l2 read", "", 1e11),
                     ceiling("cpu dram read", "", 1e10),  ceiling("cpu dram copy", "", 1.6e10)};
  return report;
}

}  // namespace

TEST_CASE("an implementation on the CPU stands below the processor's ceilings, not a GPU's") {
  const Report report = cpu_report();
  const std::vector<CpuCase> cases = cpu_cases(report);
  REQUIRE(cases.size() == 1);
  CHECK(cases[0].implementation == "screened");
  CHECK(cases[0].problem == "forward, n 2048, heads 8, head_dim 64, causal");
  CHECK(cases[0].threads == 2);
  CHECK(std::isnan(cases[0].dram_simulated));
  const Floors floors = floors_of(cases[0], report.ceilings);
  CHECK(floors.products == doctest::Approx(0.02));
  CHECK(floors.l2 == doctest::Approx(0.002));
  CHECK(floors.dram == doctest::Approx(0.001));  // the better of reading and copying
  CHECK(floors.level() == Level::products);
}

TEST_CASE("cases of GPUs are none of the CPU's, and the other way round") {
  Report report = cpu_report();
  CHECK(kernel_cases(report).empty());
  report.find("math_unit")->texts[0] = "float32";
  CHECK(cpu_cases(report).empty());
  CHECK_THROWS_AS(kernel_cases(report), ReportError);  // a CPU report has no such columns
  CHECK(cpu_cases(Report{}).empty());
}

TEST_CASE("a case that lacks what it is judged by, and a report without its ceilings, are refused") {
  Report report = cpu_report();
  const CpuCase cpu = cpu_cases(report).front();
  report.find("time_median")->numbers[0] = kMissing;
  CHECK_THROWS_WITH_AS(cpu_cases(report),
                       "a case on the CPU has no column 'time_median' with a number, 0 or more", ReportError);
  CHECK_THROWS_WITH_AS(floors_of(cpu, {}), "the report has no ceiling 'cpu fma' in float32", ReportError);
}
