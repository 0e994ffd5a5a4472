#include "experiments/runner/plan.h"

#include <cmath>
#include <set>

#include <doctest/doctest.h>

#include "core/error.h"
#include "core/suggest.h"
#include "experiments/runner/hash.h"
#include "experiments/runner/record.h"
#include "experiments/tests/toy_kind.h"

using namespace splash;
using namespace splash::experiments;
using tests::contains;
using tests::message_of;

namespace {

Definition toy_definition(const std::string& body, const std::string& name = "t") {
  return parse_definition("title = 'T'\nkind = 'toy'\n" + body, name, name + ".toml");
}

}  // namespace

TEST_CASE("hashes tell pieces apart") {
  CHECK(hash_of("") != hash_of(std::string(1, '\0')));
  CHECK(Hash().add("ab").add("c").hex() != Hash().add("a").add("bc").hex());
  CHECK(Hash().add("a").hex().size() == 16);
  CHECK(binary_hash().size() == 16);
  CHECK(binary_hash() == binary_hash());
}

TEST_CASE("a case's id depends on kind, parameters, their types, binary and inputs") {
  const Parameters one{{"x", 1.0}, {"n", int64_t{1}}};
  std::set<std::string> ids{case_id("toy", one, "b", "i")};
  ids.insert(case_id("tox", one, "b", "i"));
  ids.insert(case_id("toy", one, "c", "i"));
  ids.insert(case_id("toy", one, "b", "j"));
  ids.insert(case_id("toy", {{"x", 1.0}, {"n", int64_t{2}}}, "b", "i"));
  ids.insert(case_id("toy", {{"x", std::nextafter(1.0, 2.0)}, {"n", int64_t{1}}}, "b", "i"));
  ids.insert(case_id("toy", {{"x", 1.0}, {"n", true}}, "b", "i"));
  ids.insert(case_id("toy", {{"x", 1.0}, {"n", std::string("1")}}, "b", "i"));
  CHECK(ids.size() == 8);
  CHECK(ids.count(case_id("toy", one, "b", "i")) == 1);
}

TEST_CASE("judged cases are those that an expectation looks at, where they stand in the full list") {
  const std::string axes = "[axes]\nx = [1, 2, 3]\nn = [1, 2]\n";
  const auto judged = [&](const std::string& expectations) {
    std::vector<int64_t> indices;
    for (const PlannedCase& c : plan({toy_definition(axes + expectations)}, false, Cases::judged))
      indices.push_back(c.index);
    return indices;
  };
  const std::string check = "[[expect]]\ncheck = 'c'\nbelow = 1\ncolumn = 'y'\n";
  CHECK(judged(check + "where = { x = 2 }\n") == std::vector<int64_t>{2, 3});
  CHECK(judged(check + "where = { x = 2.0, n = 2 }\nover = { where = { x = [1, 3], n = 1 } }\n") ==
        std::vector<int64_t>{0, 3, 4});
  CHECK(judged(check).size() == 6);
  CHECK(judged(check + "where = { y = 4 }\n").size() == 6);  // y is a result, known only after the run
  CHECK(contains(message_of([&] { judged(""); }), "there is none here"));
}

TEST_CASE("shards share the cases out without overlap") {
  const auto all = plan({toy_definition("[axes]\nx = [1, 2, 3, 4, 5]\nn = [1, 2]\n")}, false);
  REQUIRE(all.size() == 10);
  std::set<std::string> ids;
  std::size_t count = 0;
  for (int64_t i = 1; i <= 3; ++i) {
    for (const PlannedCase& planned : cases_of({i, 3}, all)) {
      ids.insert(planned.case_id);
      ++count;
    }
  }
  CHECK(count == 10);
  CHECK(ids.size() == 10);
  CHECK(cases_of({12, 12}, all).empty());

  CHECK(parse_shard("2/8").index == 2);
  for (const char* bad : {"", "2", "0/2", "3/2", "-1/2", "1/0", "1/2/3", "a/b", "1/2 ", "/2", "1/"}) {
    CAPTURE(bad);
    CHECK(contains(message_of([&] { parse_shard(bad); }), "--shard takes i/N"));
  }
}

TEST_CASE("results become columns; what is missing is NaN with a reason") {
  const std::vector<Definition> definitions{toy_definition("[axes]\nn = [0, 2]\n")};
  const auto cases = plan(definitions, false);
  std::vector<CaseResult> results;
  for (const PlannedCase& planned : cases) results.push_back(find_kind("toy").evaluate(planned.parameters));
  const auto columns = make_table(definitions, cases, results);
  report::Report report;
  report.results = columns;

  REQUIRE(columns.size() == 3 + 4 + 6);
  CHECK(columns[0].info.name == "experiment");
  CHECK(columns[1].info.name == "case_id");
  CHECK(columns[2].info.name == "case_index");
  CHECK(columns[3].info.is_parameter);
  CHECK(report.find("case_index")->numbers == std::vector<double>{0, 1});
  CHECK(report.find("mode")->texts[1] == "plain");
  CHECK(report.find("strict")->numbers[0] == 0);
  CHECK(std::isnan(report.find("odd")->numbers[0]));
  CHECK(report.find("odd")->info.missing_reason == "n is 0");
  const report::Column& series = *report.find("series");
  CHECK(series.width == 2);
  CHECK(series.numbers.size() == 4);
  CHECK(std::isnan(series.numbers[0]));
  CHECK(series.numbers[3] == doctest::Approx(1.0 / 7));
  CHECK_FALSE(series.info.missing_reason.empty());
  CHECK(report.find("y")->info.missing_reason.empty());
}

TEST_CASE("a result that the kind does not declare is an error, not a silent loss") {
  const std::vector<Definition> definitions{toy_definition("")};
  const auto cases = plan(definitions, false);
  CaseResult result;
  result.numbers["typo"] = 1;
  CHECK(contains(message_of([&] { make_table(definitions, cases, {result}); }),
                 "'typo', a column that it does not declare"));
}

TEST_CASE("the record of a run reads back") {
  std::vector<Definition> definitions{toy_definition("[axes]\nn = [1, 2]\n", "first"),
                                      toy_definition("[axes]\nx = [1, 2, 3]", "second")};
  override_parameter(definitions[1], "n=4");
  const auto experiments = read_record(record(definitions, true, plan(definitions, true)));
  REQUIRE(experiments.size() == 2);
  CHECK(experiments[0].definition.name == "first");
  CHECK(experiments[0].cases == 2);
  CHECK(experiments[0].profile == "quick");
  CHECK(experiments[1].definition.name == "second");
  CHECK(experiments[1].cases == 3);
  CHECK(contains(record(definitions, true, {}), "set: n=4"));
  CHECK(read_record("title = 'x'").empty());
}

TEST_CASE("a record reads back as --set changed it") {
  std::vector<Definition> definitions{toy_definition(
      "[axes]\nx = [1, 2]\n[[expect]]\ncheck = 'c'\nbelow = 1\ncolumn = 'y'\nwhere = { x = 1 }\n")};
  override_parameter(definitions[0], "x=3,4");
  override_parameter(definitions[0], R"(mode=["plain", "signed"])");
  const auto read = read_record(record(definitions, false, plan(definitions, false)));
  REQUIRE(read.size() == 1);
  CHECK(read[0].cases == 4);
  CHECK(read[0].definition.full == definitions[0].full);
  CHECK(read[0].definition.expectations.empty());
}

TEST_CASE("experiments of the same kind and parameters take one another's names") {
  const auto report_of = [](const std::string& name, const std::string& body, const std::string& set = "") {
    std::vector<Definition> definitions{toy_definition(body, name)};
    if (!set.empty()) override_parameter(definitions[0], set);
    const auto cases = plan(definitions, false);
    std::vector<CaseResult> results;
    for (const PlannedCase& planned : cases) results.push_back(find_kind("toy").evaluate(planned.parameters));
    report::Report report;
    report.results = make_table(definitions, cases, results);
    report.provenance.experiment_toml = record(definitions, false, cases);
    return report;
  };
  const report::Report first = report_of("first", "[axes]\nn = [1, 2]\n");
  const auto adopted = [&](const std::string& body, const std::string& set = "") {
    report::Report other = report_of("other", "# a comment\n" + body, set);
    adopt_names(other, first);
    const bool named = other.find("experiment")->texts[0] == "first";
    CHECK(named == (other.provenance.experiment_toml == first.provenance.experiment_toml));
    return named;
  };
  CHECK(adopted("[axes]\nn = [1, 2]\n"));
  CHECK(adopted("[axes]\nn = [5]\n", "n=1,2"));
  CHECK_FALSE(adopted("[axes]\nn = [1, 3]\n"));
  CHECK_FALSE(adopted("[axes]\nn = [2, 1]\n"));
  CHECK_FALSE(adopted("[axes]\nn = [1, 2]\n[fixed]\nx = 7\n"));
}

TEST_CASE("the nearest word") {
  CHECK(edit_distance("entmax", "etnmax") == 1);
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("kitten", "sitting") == 3);
  const std::vector<std::string> words{"run", "reproduce", "show", "compare"};
  CHECK(nearest("runn", words) == "run");
  CHECK(nearest("repro", words) == "reproduce");
  CHECK(nearest("comapre", words) == "compare");
  CHECK(nearest("xyzzy", words).empty());
  CHECK(suggestion("xyzzy", words) == "; allowed: run, reproduce, show and compare");
}
