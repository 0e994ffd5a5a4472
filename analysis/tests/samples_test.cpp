#include "analysis/samples.h"

#include <doctest/doctest.h>

#include "analysis/compare.h"
#include "report/tests/example_report.h"

using namespace splash;
using namespace splash::analysis;
using namespace splash::analysis::testing;
using namespace splash::report;
using namespace splash::report::testing;

namespace {

// Samples around 1 ms that vary by half a percent to either side.
std::vector<double> quiet(int count) {
  std::vector<double> samples;
  for (int i = 0; i < count; ++i) samples.push_back(1e-3 * (1 + 0.005 * ((i * 7) % 11 - 5) / 5.0));
  return samples;
}

}  // namespace

TEST_CASE("quiet samples at a steady clock are trusted, few as they may be") {
  for (const int count : {0, 1, 6, 20, 40}) CHECK(why_spoilt(quiet(count), {1.9e9, 1.88e9}).empty());
  std::vector<double> padded = quiet(20);
  padded.resize(40, kMissing);
  CHECK(why_spoilt(padded).empty());
  CHECK(why_spoilt(std::vector<double>(30, kMissing)).empty());
  CHECK(why_spoilt(std::vector<double>(30, 1e-3)).empty());  // samples without any spread
}

TEST_CASE("a clock that falls is throttling, and the sentence says what to do") {
  const std::string said = why_spoilt(quiet(40), {1.98e9, 1.80e9});
  CHECK(said.find("the clock fell from 1980 to 1800 MHz") == 0);
  CHECK(said.find("nvidia-smi --lock-gpu-clocks") != std::string::npos);
  CHECK(why_spoilt(quiet(40), {1.80e9, 1.98e9}).empty());
  CHECK(why_spoilt(quiet(40), {1.98e9, kMissing}).empty());
}

TEST_CASE("a later half that is slower or faster is drift") {
  for (const double moved : {0.9, 1.06}) {
    std::vector<double> samples = quiet(40);
    for (std::size_t i = 20; i < 40; ++i) samples[i] *= moved;
    CHECK(why_spoilt(samples).find("the samples drift: the second half's median is") == 0);
    CHECK(why_spoilt(samples).find("--set samples=80") != std::string::npos);
  }
  std::vector<double> few = quiet(18);
  for (std::size_t i = 9; i < 18; ++i) few[i] *= 1.04;
  CHECK(why_spoilt(few).empty());
}

TEST_CASE("a tenth of the samples far away are outliers; one alone is not") {
  std::vector<double> samples = quiet(40);
  samples[3] *= 4;
  CHECK(why_spoilt(samples).empty());
  for (const std::size_t i : {11u, 22u, 33u}) samples[i] *= 3;
  const std::string said = why_spoilt(samples);
  CHECK(said.find("4 of 40 samples are outliers, up to 4 times the median") == 0);
  CHECK(said.find("--set samples=160") != std::string::npos);
}

TEST_CASE("a report tells its spoilt cases, and a comparison says which side was") {
  Report report;
  report.results = {text_column("case_id", {"a", "b"}), number_column("n", {1, 2}, true),
                    time_column({1e-3, 2e-3}, 40), number_column("clock_before", {1.9e9, 1.9e9}),
                    number_column("clock_after", {1.9e9, 1.6e9})};
  for (const char* clock : {"clock_before", "clock_after"}) {
    for (Column& column : report.results) {
      if (column.info.name == clock) column.info.reproducible = false;
    }
  }
  const auto cases = spoilt_cases(report);
  REQUIRE(cases.size() == 1);
  CHECK(cases[0].row == 1);
  CHECK(cases[0].column == "time");
  Report steady = report;
  for (double& hz : steady.results.back().numbers) hz = 1.9e9;
  const Comparison comparison = compare_reports(steady, report);
  REQUIRE(comparison.times.size() == 2);
  CHECK(comparison.times[0].note.empty());
  CHECK(comparison.times[1].note.find("after: the clock fell from 1900 to 1600 MHz") == 0);
}
