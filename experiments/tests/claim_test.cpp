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
using analysis::Verdict;
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
analysis::Report report_of(const std::vector<double>& y, const std::vector<std::string>& modes = {}) {
  analysis::Report report;
  analysis::Column experiment, column, mode;
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
  REQUIRE(sentences.size() == 2);
  CHECK(contains(sentences[0], "claim T1 is reproduced, where this project recorded refuted"));
  CHECK(contains(sentences[1], "t/small"));
  CHECK(surprises(claims, judge_all(claims, definitions, report_of({0.5}))).empty());
  CHECK(surprises(claims, judge_all(claims, {}, report_of({}))).empty());
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
