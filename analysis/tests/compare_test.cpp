#include "analysis/compare.h"

#include <algorithm>

#include <doctest/doctest.h>

#include "report/tests/example_report.h"

using namespace splash::analysis;
using namespace splash::analysis::testing;
using namespace splash::report;
using namespace splash::report::testing;

namespace {

// Four cases of two parameters, with an error and raw times.
Report timed_report(const std::vector<double>& seconds, int64_t samples = 30, uint64_t seed = 1) {
  Report report;
  report.results = {text_column("experiment", std::vector<std::string>(4, "e")),
                    text_column("case_id", {"a", "b", "c", "d"}),
                    number_column("kv_len", {1024, 1024, 2048, 2048}, true),
                    number_column("alpha", {1.5, 2, 1.5, 2}, true),
                    number_column("mse", {1e-6, 2e-6, kMissing, 4e-6}),
                    time_column(seconds, samples, seed)};
  return report;
}

const std::vector<double> kSeconds = {1e-3, 2e-3, 3e-3, 4e-3};

ClaimResult claim(const std::string& id, Verdict verdict) {
  ClaimResult result;
  result.id = id;
  result.verdict = verdict;
  return result;
}

}  // namespace

TEST_CASE("a report is the same as itself") {
  const Comparison comparison = compare_reports(timed_report(kSeconds), timed_report(kSeconds));
  CHECK(comparison.matched_cases == 4);
  CHECK(!comparison.regressed);
  REQUIRE(comparison.columns.size() == 1);
  CHECK(comparison.columns[0].column == "mse");
  CHECK(comparison.columns[0].difference == Difference::same);
  REQUIRE(comparison.times.size() == 4);
  for (const TimeChange& time : comparison.times) CHECK(time.difference == Difference::same);
  CHECK(comparison.times[1].case_parameters == "experiment=e, kv_len=1024, alpha=2");
  CHECK(comparison.claims.empty());
}

TEST_CASE("cases are matched by their parameters, not by id or order") {
  Report after = timed_report({4e-3, 3e-3, 2e-3, 1e-3}, 30, 2);
  after.results[1].texts = {"z", "y", "x", "a"};
  std::reverse(after.results[2].numbers.begin(), after.results[2].numbers.end());
  std::reverse(after.results[3].numbers.begin(), after.results[3].numbers.end());
  std::reverse(after.results[4].numbers.begin(), after.results[4].numbers.end());
  const Comparison comparison = compare_reports(timed_report(kSeconds), after);
  CHECK(comparison.matched_cases == 4);
  CHECK(comparison.columns[0].difference == Difference::same);
  for (const TimeChange& time : comparison.times) CHECK(time.difference == Difference::same);
  CHECK(comparison.times[1].case_id_before == "b");
  CHECK(comparison.times[1].case_id_after == "x");
}

TEST_CASE("times are faster, slower, the same or unsure") {
  const Report before = timed_report(kSeconds);
  const Comparison comparison =
      compare_reports(before, timed_report({0.9e-3, 2.2e-3, 3.001e-3, 4.055e-3}, 30, 3));
  REQUIRE(comparison.times.size() == 4);
  CHECK(comparison.times[0].difference == Difference::faster);
  CHECK(comparison.times[0].ratio == doctest::Approx(0.9).epsilon(0.02));
  CHECK(comparison.times[1].difference == Difference::slower);
  CHECK(comparison.times[2].difference == Difference::same);
  CHECK(comparison.times[3].difference ==
        Difference::unsure);  // surely 1.4 % slower, which is under the threshold
  CHECK(comparison.times[3].note.find("for certain") != std::string::npos);
  CHECK(comparison.regressed);
  CHECK(!compare_reports(before, timed_report({0.9e-3, 1e-3, 2e-3, 3e-3})).regressed);

  CompareOptions options;
  options.time_threshold = 0.001;
  CHECK(compare_reports(before, timed_report({1e-3, 2e-3, 3e-3, 4.1e-3}), options).times[3].difference ==
        Difference::slower);
}

TEST_CASE("few samples or wide intervals leave it unsure") {
  const Comparison few =
      compare_reports(timed_report(kSeconds, 5), timed_report({2e-3, 4e-3, 6e-3, 8e-3}, 5));
  CHECK(few.times[0].difference == Difference::unsure);
  CHECK(few.times[0].note.find("5 samples") != std::string::npos);
  CHECK(!few.regressed);

  Report noisy = timed_report(kSeconds, 6), later = noisy;
  for (size_t i = 0; i < 6; ++i) {
    noisy.results[5].numbers[i] = 1e-3 * static_cast<double>(1 + i);
    later.results[5].numbers[i] = 1.2e-3 * static_cast<double>(1 + i);
  }
  const Comparison wide = compare_reports(noisy, later);
  CHECK(wide.times[0].difference == Difference::unsure);
  CHECK(wide.times[0].note.find("overlap") != std::string::npos);
}

TEST_CASE("reproducible numbers differ past the tolerance") {
  const Report before = timed_report(kSeconds);
  Report after = before;
  after.results[4].numbers[1] *= 1 + 1e-12;
  CHECK(compare_reports(before, after).columns[0].difference == Difference::same);
  after.results[4].numbers[1] *= 1.5;
  after.results[4].numbers[3] *= 1.1;
  const ColumnChange change = compare_reports(before, after).columns[0];
  CHECK(change.difference == Difference::different);
  CHECK(change.differing == 2);
  CHECK(change.cases == 4);
  CHECK(change.max_difference == doctest::Approx(1.0 / 3));
  CHECK(change.before == doctest::Approx(2e-6));
  CHECK(change.after == doctest::Approx(3e-6));
  CHECK(change.worst_case == "experiment=e, kv_len=1024, alpha=2");
  CHECK(compare_reports(before, after).regressed);

  after.results[4].numbers[2] = 0;  // was missing
  CHECK(std::isinf(compare_reports(before, after).columns[0].max_difference));
  CompareOptions loose;
  loose.relative_tolerance = 0.5;
  after.results[4].numbers[2] = kMissing;
  CHECK(compare_reports(before, after, loose).columns[0].difference == Difference::same);
}

TEST_CASE("text results are compared too") {
  Report before = timed_report(kSeconds), after = before;
  before.results.push_back(text_column("diagnosis", {"", "a", "b", "c"}));
  after.results.push_back(text_column("diagnosis", {"", "a", "x", "c"}));
  const Comparison comparison = compare_reports(before, after);
  REQUIRE(comparison.columns.size() == 2);
  CHECK(comparison.columns[1].difference == Difference::different);
  CHECK(comparison.columns[1].differing == 1);
}

TEST_CASE("cases without a partner, or with several, are listed") {
  const Report before = timed_report(kSeconds);
  Report after = before;
  after.results[2].numbers = {1024, 1024, 2048, 8192};
  Comparison comparison = compare_reports(before, after);
  CHECK(comparison.matched_cases == 3);
  CHECK(comparison.only_before == std::vector<std::string>{"experiment=e, kv_len=2048, alpha=2"});
  CHECK(comparison.only_after == std::vector<std::string>{"experiment=e, kv_len=8192, alpha=2"});
  CHECK(!comparison.regressed);

  after.results[2].numbers = {1024, 1024, 2048, 1024};  // the second and the last are the same case
  comparison = compare_reports(before, after);
  CHECK(comparison.matched_cases == 2);
  CHECK(comparison.only_after.size() == 2);
}

TEST_CASE("an experiment of another name is a partner if its kind and parameters are the same") {
  Report before = timed_report(kSeconds), after = before;
  after.results[0].texts = {"other", "other", "e", "e"};
  CHECK(compare_reports(before, after).matched_cases == 2);
  Column kind = text_column("kind", std::vector<std::string>(4, "toy"));
  kind.info.is_parameter = true;
  before.results.push_back(kind);
  CHECK(compare_reports(before, after).matched_cases == 2);
  after.results.push_back(kind);
  const Comparison comparison = compare_reports(before, after);
  CHECK(comparison.matched_cases == 4);
  CHECK(comparison.times[0].case_parameters == "experiment=e, kv_len=1024, alpha=1.5");
  after.results.back().texts[0] = "another";
  CHECK(compare_reports(before, after).matched_cases == 3);
}

TEST_CASE("several runs a side are judged by the spread between them") {
  // A run's own samples spread by 1 %; the runs of the first case spread by 10 %.
  const auto runs = [](const std::vector<double>& first_case, uint64_t seed) {
    std::vector<Report> reports;
    for (const double seconds : first_case)
      reports.push_back(timed_report({seconds, 2e-3, 3e-3, 4e-3}, 30, seed++));
    return reports;
  };
  const auto first = [](const std::vector<Report>& before, const std::vector<Report>& after) {
    return compare_runs(before, after).times[0];
  };
  const std::vector<Report> before = runs({1.0e-3, 1.1e-3, 1.05e-3}, 1);
  CHECK(compare_reports(before[0], before[1]).times[0].difference == Difference::slower);  // one run each

  const TimeChange same = first(before, runs({1.08e-3, 1.02e-3, 1.04e-3}, 5));
  CHECK(same.difference == Difference::same);
  CHECK(same.runs_before == 3);
  CHECK(same.before == doctest::Approx(1.05e-3).epsilon(0.01));
  CHECK(same.before_interval.high == doctest::Approx(1.1e-3).epsilon(0.01));
  const TimeChange slower = first(before, runs({1.2e-3, 1.15e-3, 1.3e-3}, 5));
  CHECK(slower.difference == Difference::slower);
  CHECK(slower.ratio == doctest::Approx(1.2 / 1.05).epsilon(0.01));
  CHECK(first(before, runs({0.9e-3, 0.8e-3, 0.95e-3}, 5)).difference == Difference::faster);
  const TimeChange overlapping = first(before, runs({1.2e-3, 1.15e-3, 1.07e-3}, 5));
  CHECK(overlapping.difference == Difference::unsure);
  CHECK(overlapping.note.find("their runs overlap") != std::string::npos);

  // Two and two: a third of the orders sorts them. Two and five are enough.
  const TimeChange few = first(runs({1e-3, 1.1e-3}, 1), runs({1.3e-3, 1.4e-3}, 5));
  CHECK(few.difference == Difference::unsure);
  CHECK(few.note.find("2 and 2 runs: chance alone sorts them once in 6") != std::string::npos);
  CHECK(first(runs({1e-3, 1.1e-3}, 1), runs({1.3e-3, 1.4e-3, 1.3e-3, 1.4e-3, 1.3e-3}, 5)).difference ==
        Difference::slower);

  // A run that lacks the case counts for the others only; one run of a side is judged by its samples.
  std::vector<Report> after = runs({1.2e-3, 1.15e-3, 1.3e-3}, 5);
  after[2].results[2].numbers[0] = 512;
  CHECK(first(before, after).runs_after == 2);
  CHECK(compare_runs(before, after).times[1].runs_after == 3);
  CHECK(first(before, {after[0]}).runs_before == 1);
}

TEST_CASE("a peer's cases are compared and decide nothing") {
  Report before = timed_report(kSeconds), after = timed_report({1e-3, 2e-3, 3e-3, 5e-3});
  const auto name = [](Report& report, std::vector<std::string> names) {
    Column column = text_column("implementation", std::move(names));
    column.info.is_parameter = true;
    report.results.push_back(column);
  };
  name(before, {"ours", "ours", "ours", "torch-math"});
  name(after, {"ours", "ours", "ours", "torch-math"});
  after.results[4].numbers[3] = 5e-6;
  const Comparison comparison = compare_reports(before, after);
  CHECK(comparison.times[3].difference == Difference::slower);
  CHECK(comparison.times[3].peer);
  CHECK(comparison.columns[0].difference == Difference::different);
  CHECK(comparison.columns[0].differing_peers == 1);
  CHECK_FALSE(comparison.regressed);

  after.results[4].numbers[0] = 5e-6;
  CHECK(compare_reports(before, after).regressed);
  Report without_peer = before;
  without_peer.results[2].numbers[3] = 512;
  CHECK_FALSE(compare_reports(before, without_peer).lost);
  without_peer.results[2].numbers[0] = 512;
  CHECK(compare_reports(before, without_peer).lost);
}

TEST_CASE("claims whose verdict changed") {
  Report before, after;
  before.claims = {claim("kept", Verdict::reproduced), claim("lost", Verdict::reproduced),
                   claim("won", Verdict::refuted), claim("gone", Verdict::reproduced)};
  after.claims = {claim("new", Verdict::refuted), claim("kept", Verdict::reproduced),
                  claim("lost", Verdict::refuted), claim("won", Verdict::reproduced)};
  const Comparison comparison = compare_reports(before, after);
  REQUIRE(comparison.claims.size() == 4);
  CHECK(comparison.claims[0].id == "lost");
  CHECK(comparison.claims[0].regressed);
  CHECK(comparison.claims[1].id == "won");
  CHECK(!comparison.claims[1].regressed);
  CHECK(comparison.claims[2].after == "absent");
  CHECK(comparison.claims[2].regressed);
  CHECK(comparison.claims[3].before == "absent");
  CHECK(!comparison.claims[3].regressed);
  CHECK(comparison.regressed);
}
