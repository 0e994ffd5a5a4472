#include "experiments/claims/case_table.h"

#include <cmath>

#include <doctest/doctest.h>

#include "experiments/tests/toy_kind.h"
#include "report/tests/example_report.h"

using namespace splash::experiments;
using splash::experiments::tests::contains;
using splash::experiments::tests::message_of;
using splash::report::kMissing;
using splash::report::Report;
using namespace splash::report::testing;

namespace {

// Two heads for each K_KEEP and alpha, but none for K_KEEP 16 at alpha 2; "all" has no K_KEEP.
Report report() {
  Report report;
  auto scope = text_column("scope", {"row", "row", "row", "row", "row", "row", "all", "all"});
  scope.info.is_parameter = true;
  report.results = {text_column("experiment", std::vector<std::string>(8, "e")),
                    scope,
                    number_column("k_keep", {16, 16, 8, 8, 8, 8, kMissing, kMissing}, true),
                    number_column("alpha", {1.5, 1.5, 1.5, 1.5, 2, 2, 2, 2}, true),
                    number_column("head", {0, 1, 0, 1, 0, 1, 0, 1}, true),
                    number_column("mse", {1, 2, 3, 5, 7, kMissing, kMissing, kMissing}),
                    time_column(std::vector<double>(8, 1e-3), 3)};
  return report;
}

CaseTable table(CaseTableRequest request, const std::vector<std::string>& where = {}) {
  const Report cases = report();
  for (const std::string& assignment : where) add_where(request.where, cases, assignment);
  return table_of_cases(cases, request);
}

const CaseTableRequest kRequest{{"k_keep"}, {"alpha"}, "mse", Statistic::median, {}};

}  // namespace

TEST_CASE("a table has a statistic of a cell's cases, and says what they are") {
  const CaseTable found = table(kRequest);
  using Keys = std::vector<std::vector<std::string>>;
  CHECK(found.row_keys == Keys{{"8"}, {"16"}, {"(none)"}});  // numbers ascend; without the parameter: last
  CHECK(found.column_keys == Keys{{"1.5"}, {"2"}});
  CHECK(found.cells[0][0].value == 4);
  CHECK(found.cells[0][0].cases == 2);
  CHECK(found.cells[1][0].value == 1.5);
  CHECK(found.cells[0][1].value == 7);  // of the one case that has a value
  CHECK(found.cells[0][1].cases == 2);
  CHECK(found.cells[0][1].without_value == 1);
  CHECK(found.cells[1][1].cases == 0);
  CHECK(std::isnan(found.cells[1][1].value));
  CHECK(found.cells[2][1].cases == 2);
  CHECK(std::isnan(found.cells[2][1].value));
  CHECK(found.varying == std::vector<std::string>{"head"});
}

TEST_CASE("a table of counts, of several parameters, of no columns, of some cases") {
  CaseTableRequest counts = kRequest;
  counts.statistic = std::nullopt;
  CHECK(table(counts).cells[0][1].value == 1);
  CHECK(table(counts).cells[1][1].value == 0);
  counts.value = "";
  CHECK(table(counts).cells[0][1].value == 2);

  const CaseTable one = table({{"scope", "head"}, {}, "mse", Statistic::max, {}}, {"alpha=1.5"});
  CHECK(one.row_keys == std::vector<std::vector<std::string>>{{"row", "0"}, {"row", "1"}});
  CHECK(one.column_keys.size() == 1);
  CHECK(one.cells[0][0].value == 3);
  CHECK(one.cells[1][0].value == 5);
  CHECK(one.varying == std::vector<std::string>{"k_keep"});

  CHECK(table(kRequest, {"head=1", "k_keep=8,16"}).cells[0][0].value == 5);
  CHECK(table(kRequest, {"scope=all"}).row_keys.front().front() == "(none)");
  CHECK(table(kRequest, {"mse=3"}).cells.size() == 1);
  CHECK(table(kRequest, {"head=true"}).cells[0][0].value == 5);
}

TEST_CASE("what a table cannot show is said in one sentence, with what there is") {
  const auto fault = [](CaseTableRequest request, const std::vector<std::string>& where = {}) {
    return message_of([&] { table(std::move(request), where); });
  };
  CHECK(contains(fault({{"k_kep"}, {}, "mse", Statistic::median, {}}),
                 "has no parameter 'k_kep'; did you mean 'k_keep'?"));
  CHECK(contains(fault({{"mse"}, {}, "mse", Statistic::median, {}}),
                 "allowed: experiment, scope, k_keep, alpha and head"));
  CHECK(contains(fault({{"k_keep"}, {"k_keep"}, "mse", Statistic::median, {}}), "is given twice"));
  CHECK(contains(fault({{"k_keep"}, {}, "time", Statistic::median, {}}),
                 "no column of one number a case 'time'"));
  CHECK(contains(fault({{"k_keep"}, {}, "scope", Statistic::median, {}}), "no column of one number a case"));
  CHECK(contains(fault(kRequest, {"alpha=3"}), "no case of the report has alpha 3; there are 1.5 and 2"));
  CHECK(contains(fault(kRequest, {"alpha=2", "k_keep=16"}), "has alpha 2 and k_keep 16 at once"));
  CHECK(contains(fault(kRequest, {"alpa=2"}), "did you mean 'alpha'?"));
  CHECK(contains(fault(kRequest, {"alpha"}), "--where takes name=value"));
  CHECK(contains(fault(kRequest, {"alpha=x"}), "type number"));
  CHECK(contains(fault(kRequest, {"alpha=2", "alpha=1.5"}), "--where gives alpha twice"));
}
