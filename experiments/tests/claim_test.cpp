#include "experiments/claims/claim.h"

#include <cmath>

#include <doctest/doctest.h>

#include "core/error.h"
#include "experiments/claims/arithmetic.h"
#include "experiments/claims/judge.h"
#include "experiments/claims/measure.h"
#include "experiments/tests/toy_kind.h"

using namespace splash;
using namespace splash::experiments;
using report::Verdict;
using tests::changed;
using tests::contains;
using tests::message_of;

namespace {

const std::string kClaim =
    "[[claim]]\nid = 'T1'\nsource = 's'\ntext = 'y is 2'\ntheirs = '2'\ntheirs_value = 2\nrelation = "
    "'equal'\n"
    "tolerance = 0.5\nmethod = 'cpu'\nreproduced = 'ours {ours}'\nrefuted = '{ours} in [{low}, {high}], not "
    "{theirs}'\n";

// A report with one column y and one text column mode, of the experiment "t".
report::Report report_of(const std::vector<double>& y, const std::vector<std::string>& modes = {}) {
  report::Report report;
  report::Column experiment, column, mode;
  experiment.info = {.name = "experiment", .units = "1", .long_name = "", .formula = "", .is_text = true};
  column.info = {.name = "y", .units = "1", .long_name = "", .formula = ""};
  mode.info = {.name = "mode", .units = "1", .long_name = "", .formula = "", .is_text = true};
  experiment.texts.assign(y.size(), "t");
  column.numbers = y;
  mode.texts = modes.empty() ? std::vector<std::string>(y.size(), "plain") : modes;
  report.results = {experiment, column, mode};
  return report;
}

Definition definition_with(const std::string& expectations) {
  return parse_definition("title = 'T'\nkind = 'toy'\n" + expectations, "t", "t.toml");
}

std::string claim_fault(const std::string& toml) {
  return message_of([&] { parse_claims(toml, "c.toml"); });
}

}  // namespace

TEST_CASE("claims are read, and faults named") {
  const auto claims = parse_claims(kClaim, "c.toml");
  REQUIRE(claims.size() == 1);
  CHECK(claims[0].tolerance == 0.5);
  CHECK(parse_claims(changed(kClaim, "tolerance = 0.5", "relative_tolerance = 0.1"), "c")[0].tolerance ==
        doctest::Approx(0.2));
  CHECK(contains(claim_fault(kClaim + kClaim), "claim T1 is there twice"));
  CHECK(contains(claim_fault(changed(kClaim, "method", "methud")), "lacks 'method'"));
  CHECK(contains(claim_fault(changed(kClaim, "'cpu'", "'gqu'")),
                 "'method' cannot be \"gqu\"; did you mean 'gpu'?"));
  CHECK(contains(claim_fault(changed(kClaim, "tolerance = 0.5\n", "")), "needs 'tolerance'"));
  CHECK(contains(claim_fault(changed(kClaim, "theirs_value = 2\n", "")), "lacks 'theirs_value'"));
  CHECK(contains(claim_fault(kClaim + "extra = 1\n"), "c.toml:12: unknown key 'extra'"));
  CHECK(contains(claim_fault(kClaim + "comparable = false\n"), "needs the reason"));
  const std::string value = "theirs_value = 2\nrelation = 'equal'\ntolerance = 0.5\n";
  const auto range = [&](const std::string& text) {
    return changed(kClaim, value, "theirs_range = " + text + "\n");
  };
  CHECK(parse_claims(range("[1, 4]"), "c")[0].theirs_value == 2.5);
  CHECK(parse_claims(range("[1, 4.0]"), "c")[0].tolerance == 1.5);
  for (const char* wrong : {"3", "[1]", "[4, 1]", "['1', '2']", "[1, inf]", "[1, 2, 3]"})
    CHECK(contains(claim_fault(range(wrong)), "'theirs_range' that is not [least, most]"));
  CHECK(contains(claim_fault(range("[1, 4]\ntheirs_value = 2")), "unknown key 'theirs_value'"));
  CHECK(contains(claim_fault("[claim]\nid = 'x'\n"), "must be written as [[claim]]"));
  const Definition unknown = definition_with("[[expect]]\nclaim = 'T2'\ncolumn = 'y'\n");
  CHECK(contains(message_of([&] { require_known_claims(unknown, claims); }),
                 "t.toml:3: [[expect]] names claim 'T2'"));
}

TEST_CASE("relations") {
  CHECK(holds(Relation::equal, 2.4, 2, 0.5));
  CHECK_FALSE(holds(Relation::equal, 2.6, 2, 0.5));
  CHECK(holds(Relation::below, 1e-5, 1e-4, 0));
  CHECK_FALSE(holds(Relation::below, 1e-3, 1e-4, 0));
  CHECK(holds(Relation::above, 12, 10, 0));
  CHECK_FALSE(holds(Relation::above, 9, 10, 0.5));
  CHECK_FALSE(holds(Relation::equal, std::nan(""), 2, 0.5));
}

TEST_CASE("statistics over the cases that fit") {
  const auto report = report_of({1, 2, 3, 4, std::nan("")}, {"plain", "plain", "signed", "signed", "signed"});
  auto value = [&](Statistic statistic, const Filter& where) {
    return measure(report, "t", Measurement{"y", where, statistic});
  };
  CHECK(value(Statistic::median, {}).ours == 2.5);
  CHECK(value(Statistic::median, {}).cases == 4);
  CHECK(value(Statistic::mean, {{"mode", {std::string("plain")}}}).ours == 1.5);
  CHECK(value(Statistic::max, {{"mode", {std::string("plain")}}}).ours == 2);
  CHECK(value(Statistic::min, {{"mode", {std::string("plain"), std::string("signed")}}}).ours == 1);
  CHECK(value(Statistic::sum, {}).ours == 10);
  CHECK(value(Statistic::fraction_true, {}).ours == 1);
  CHECK(value(Statistic::fraction_true, {}).low < 1);
  CHECK_FALSE(value(Statistic::mean, {{"mode", {std::string("other")}}}).found());
  CHECK_FALSE(measure(report, "another", Measurement{"y", {}, Statistic::mean}).found());
  const Measured median = value(Statistic::median, {});
  CHECK(median.low <= median.ours);
  CHECK(median.high >= median.ours);

  Expectation ratio;
  ratio.measured = {"y", {{"mode", {std::string("signed")}}}, Statistic::max};
  ratio.over = Measurement{"y", {{"mode", {std::string("plain")}}}, Statistic::max};
  CHECK(measure(report, "t", ratio).ours == 2);
  ratio.as = RatioAs::gain_percent;
  CHECK(measure(report, "t", ratio).ours == 100);
  ratio.as = RatioAs::percent;
  CHECK(measure(report, "t", ratio).ours == 200);
}

TEST_CASE(
    "the least, the largest, the middle and the sum of several medians have the interval that theirs leave "
    "open") {
  report::Report report = report_of({});
  report.results[0].texts = {"t", "t", "t"};
  const auto add = [&](const char* name, const std::vector<double>& numbers) {
    report::Column column{.info = {.name = name, .units = "s", .long_name = "", .formula = ""}};
    column.numbers = numbers;
    report.results.push_back(column);
  };
  add("time_median", {5, 4, 9});
  add("time_low", {2, 3.5, 8});
  add("time_high", {6, 4.5, std::nan("")});
  const auto of = [&](const char* column, Statistic statistic) {
    return measure(report, "t", Measurement{column, {}, statistic});
  };
  const Measured least = of("time_median", Statistic::min);
  CHECK(least.ours == 4);
  CHECK(least.low == 2);     // the first value may be the least
  CHECK(least.high == 4.5);  // the second value is at most that
  const Measured most = of("time_median", Statistic::max);
  CHECK(most.ours == 9);
  CHECK(most.low == 8);
  CHECK(most.high == 9);  // not recorded, so the number stands for itself
  CHECK(of("time_low", Statistic::min).high == 2);
  const Measured middle = of("time_median", Statistic::median_case);
  CHECK(middle.ours == 5);
  CHECK(middle.low == 3.5);  // of 2, 3.5 and 8
  CHECK(middle.high == 6);   // of 6, 4.5 and 9
  const Measured sum = of("time_median", Statistic::sum);
  CHECK(sum.ours == 18);
  CHECK(sum.low == 13.5);   // 2 + 3.5 + 8
  CHECK(sum.high == 19.5);  // 6 + 4.5 + 9
  CHECK(of("time_low", Statistic::sum).high == 13.5);
  const Measured sampled = of("time_median", Statistic::median);
  CHECK(sampled.ours == 5);
  CHECK(sampled.low == 4);  // three values say little of the median of more of their kind
  CHECK(sampled.high == 9);
  Expectation ratio;
  ratio.measured = {"time_median", {}, Statistic::max};
  ratio.over = Measurement{"time_median", {}, Statistic::min};
  CHECK(measure(report, "t", ratio).low == doctest::Approx(8 / 4.5));
  CHECK(measure(report, "t", ratio).high == doctest::Approx(9.0 / 2));
}

TEST_CASE("a quotient of sums needs as many cases of both") {
  const auto quotient = [](const std::vector<double>& y, const std::vector<std::string>& mode) {
    Expectation ratio;
    ratio.measured = {"y", {{"mode", {std::string("plain")}}}, Statistic::sum};
    ratio.over = Measurement{"y", {{"mode", {std::string("signed")}}}, Statistic::sum};
    return measure(report_of(y, mode), "t", ratio);
  };
  const std::vector<std::string> mode{"plain", "plain", "signed", "signed"};
  CHECK(quotient({6, 2, 1, 3}, mode).ours == 2);
  const Measured lacking = quotient({6, 2, 1, std::nan("")}, mode);
  CHECK_FALSE(lacking.found());
  CHECK(std::isnan(lacking.ours));
  CHECK(lacking.why_none == "a quotient of sums needs as many cases of both, not 2 and 1");
  CHECK_FALSE(quotient({6, 2}, {"plain", "plain"}).found());
  const std::vector<Definition> definitions{definition_with(
      "[[expect]]\ncheck = 'all'\nabove = 1.5\ncolumn = 'y'\nwhere = { mode = 'plain' }\nstatistic = 'sum'\n"
      "over = { where = { mode = 'signed' }, statistic = 'sum' }\n")};
  const auto judged = [&](const std::vector<double>& y) {
    const auto results = judge_all(parse_claims(kClaim, "c.toml"), definitions, report_of(y, mode));
    return results.back();
  };
  CHECK(judged({6, 2, 1, 3}).verdict == Verdict::reproduced);
  CHECK(judged({6, 2, 1, std::nan("")}).verdict == Verdict::not_comparable);
  CHECK(judged({6, 2, 1, std::nan("")}).reason == lacking.why_none);
}

TEST_CASE("verdicts") {
  const auto claims = parse_claims(kClaim, "c.toml");
  const std::vector<Definition> definitions{
      definition_with("[[expect]]\nclaim = 'T1'\ncolumn = 'y'\nstatistic = 'max'\n")};

  auto results = judge_all(claims, definitions, report_of({1, 2.2}));
  REQUIRE(results.size() == 1);
  CHECK(results[0].verdict == Verdict::reproduced);
  CHECK(contains(results[0].reason, "ours 2.2 (max of y over 2 cases)"));

  results = judge_all(claims, definitions, report_of({1, 7}));
  CHECK(results[0].verdict == Verdict::refuted);
  CHECK(contains(results[0].reason, "7 in [7, 7], not 2"));

  results = judge_all(claims, {}, report_of({1, 7}));
  CHECK(results[0].verdict == Verdict::not_comparable);
  CHECK(std::isnan(results[0].ours));
  CHECK(results[0].reason == "no case of this report measures it");

  const auto on_gpu = parse_claims(changed(kClaim, "'cpu'", "'gpu'"), "c");
  CHECK(judge_all(on_gpu, {}, report_of({}))[0].reason == "needs a GPU measurement; none is in this report");

  const auto never = parse_claims(kClaim + "comparable = false\nnot_comparable = 'because'\n", "c");
  CHECK(judge_all(never, definitions, report_of({2}))[0].reason == "because");
  CHECK(judge_all(never, definitions, report_of({2}))[0].verdict == Verdict::not_comparable);
}

TEST_CASE("an interval on both sides of the limit makes a claim unsure") {
  const auto verdict = [](const std::string& claim, double ours, double low, double high) {
    return judge(parse_claims(claim, "c")[0], {ours, low, high, 1, ""}).verdict;
  };
  const std::string range =
      changed(kClaim, "theirs_value = 2\nrelation = 'equal'\ntolerance = 0.5", "theirs_range = [1, 2]");
  const std::string bound = changed(changed(kClaim, "'equal'", "'above'"), "tolerance = 0.5\n", "");
  struct Case {
    double ours, low, high;
    Verdict of_value, of_range, of_bound;  // 1.5 to 2.5; 1 to 2; at least 2
  };
  constexpr auto yes = Verdict::reproduced, no = Verdict::refuted, unsure = Verdict::unsure;
  for (const Case& c :
       {Case{2, 2, 2, yes, yes, yes}, Case{1.9, 1.6, 2.2, yes, unsure, unsure},
        Case{2.6, 2.4, 2.8, unsure, no, yes}, Case{9, 8, 10, no, no, yes}, Case{0.5, 0.2, 0.9, no, no, no},
        Case{5, 0, 9, unsure, unsure, unsure}, Case{1.2, 1.1, 1.4, no, yes, no}}) {
    CAPTURE(c.ours);
    CHECK(verdict(kClaim, c.ours, c.low, c.high) == c.of_value);
    CHECK(verdict(range, c.ours, c.low, c.high) == c.of_range);
    CHECK(verdict(bound, c.ours, c.low, c.high) == c.of_bound);
  }
  const auto result = judge(parse_claims(kClaim, "c")[0], {2.6, 2.4, 2.8, 1, ""});
  CHECK(result.reason == "2.6, but anything in [2.4, 2.8] is possible, and not all of it bears out 2");
}

TEST_CASE("one case's median has the interval of its samples") {
  report::Report report = report_of({4, 2});
  report.results[1].info.name = "time_median";
  for (const auto& [name, values] :
       {std::pair<const char*, std::vector<double>>{"time_low", {3, std::nan("")}},
        {"time_high", {6, 2.5}}}) {
    report::Column column;
    column.info = {.name = name, .units = "1", .long_name = "", .formula = ""};
    column.numbers = values;
    report.results.push_back(column);
  }
  report.results[2].texts = {"a", "b"};
  const auto of = [&](const char* mode) {
    return measure(report, "t",
                   Measurement{"time_median", {{"mode", {std::string(mode)}}}, Statistic::median});
  };
  CHECK(of("a").low == 3);
  CHECK(of("a").high == 6);
  CHECK(of("b").low == 2);  // missing, so the number stands for itself
  CHECK(of("b").high == 2.5);
  CHECK(measure(report, "t", Measurement{"time_median", {}, Statistic::mean}).high > 4);  // of several
}

TEST_CASE("a claim with several expectations must hold in each") {
  const auto claims = parse_claims(kClaim, "c.toml");
  const std::vector<Definition> definitions{
      definition_with("[[expect]]\nclaim = 'T1'\ncolumn = 'y'\nstatistic = 'max'\n[[expect]]\nclaim = "
                      "'T1'\ncolumn = 'y'\nstatistic = 'min'\n")};
  const auto results = judge_all(claims, definitions, report_of({0.5, 2}));
  REQUIRE(results.size() == 1);
  CHECK(results[0].verdict == Verdict::refuted);
  CHECK(results[0].ours == 0.5);
  CHECK(contains(results[0].reason, "1 of 2 measurements bear it out"));
}

TEST_CASE("several runs are pooled: each in its own ratio, and the interval reaches over all of them") {
  const auto claims = parse_claims(kClaim, "c.toml");
  const std::vector<Definition> definitions{definition_with(
      "[[expect]]\nclaim = 'T1'\ncolumn = 'y'\nwhere = { mode = 'plain' }\nover = { where = { mode = "
      "'signed' } }\n"
      "[[expect]]\ncheck = 'small'\nbelow = 2.2\ncolumn = 'y'\nwhere = { mode = 'signed' }\n")};
  const auto run = [](double a, double b) { return report_of({a, b}, {"plain", "signed"}); };
  const std::vector<report::Report> others{run(30, 10), run(200, 100)};
  const auto results = judge_all(claims, definitions, run(4, 2), others);
  CHECK(results[0].ours == 2);  // not the ratio of the mean times
  CHECK(results[0].ours_low == 2);
  CHECK(results[0].ours_high == 3);  // beside [1.5, 2.5]
  CHECK(results[0].verdict == Verdict::unsure);
  CHECK(contains(results[0].reason, "median of 3 runs"));
  CHECK(results[1].ours == 10);
  CHECK(results[1].verdict == Verdict::unsure);
  // Runs that have no such case change nothing. If no run has one, there is nothing to judge.
  const std::vector<report::Report> without{report_of({1}, {"other"})};
  const auto alone = judge_all(claims, definitions, run(4, 2), without);
  CHECK(alone[0].verdict == Verdict::reproduced);
  CHECK_FALSE(contains(alone[0].reason, "runs"));
  CHECK(judge_all(claims, definitions, without[0], without)[0].verdict == Verdict::not_comparable);
}

TEST_CASE("checks and expected verdicts: what is not as recorded") {
  const auto claims = parse_claims(kClaim + "expected_verdict = 'refuted'\n", "c.toml");
  const std::vector<Definition> definitions{
      definition_with("[[expect]]\nclaim = 'T1'\ncolumn = 'y'\n[[expect]]\ncheck = 'small'\nbelow = "
                      "1\ncolumn = 'y'\nstatistic = 'max'\n")};
  auto results = judge_all(claims, definitions, report_of({2}));
  REQUIRE(results.size() == 2);
  CHECK(results[1].id == "t/small");
  CHECK(results[1].source == "this project");
  auto sentences = surprises(claims, results);
  REQUIRE(sentences.differing.size() == 2);
  CHECK(sentences.unsure.empty());
  CHECK(contains(sentences.differing[0], "claim T1 is reproduced, where this project recorded refuted"));
  CHECK(contains(sentences.differing[1], "t/small"));
  for (const auto& none : {surprises(claims, judge_all(claims, definitions, report_of({0.5}))),
                           surprises(claims, judge_all(claims, {}, report_of({})))}) {
    CHECK(none.differing.empty());
    CHECK(none.unsure.empty());
  }
  for (auto& result : results) result.verdict = Verdict::unsure;
  CHECK(surprises(claims, results).differing.empty());
  CHECK(surprises(claims, results).unsure.size() == 2);
}

TEST_CASE("every claim of data/claims can be read, and every arithmetic one has its arithmetic") {
  const auto claims = read_claims(std::string(SPLASH_SOURCE_DIR) + "/data/claims");
  REQUIRE_FALSE(claims.empty());
  for (const Claim& claim : claims) {
    CAPTURE(claim.id);
    if (claim.method == "arithmetic" && claim.comparable) CHECK(arithmetic_judges().count(claim.id) == 1);
  }
  for (const auto& entry : arithmetic_judges()) {
    const std::string& id = entry.first;
    CAPTURE(id);
    CHECK(find_claim(claims, id) != nullptr);
    CHECK_FALSE(entry.second().formula.empty());
  }
}
