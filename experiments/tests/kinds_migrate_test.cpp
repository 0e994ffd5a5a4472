// Gives older reports the labels of today.

#include <doctest/doctest.h>

#include "core/error.h"
#include "experiments/kinds/support/migrate.h"
#include "experiments/runner/plan.h"
#include "experiments/runner/record.h"
#include "experiments/runner/recorded.h"
#include "experiments/tests/kinds_helpers.h"

using namespace splash;
using namespace splash::experiments;
using namespace splash::experiments::tests;

namespace {

report::Column* find(report::Report& report, const std::string& name) {
  for (report::Column& column : report.results) {
    if (column.info.name == name) return &column;
  }
  return nullptr;
}

// A captured and a synthetic case in the old form, which recorded every parameter as asked for.
report::Report as_it_was() {
  const std::vector<Definition> definitions{
      parse_definition("title = \"t\"\nkind = \"workload\"\n[fixed]\ninput = \"minilm\"\n", "captured",
                       "a.toml"),
      parse_definition("title = \"t\"\nkind = \"workload\"\n[fixed]\ninput = \"sink\"\nlength = 40\n",
                       "drawn", "b.toml")};
  const auto cases = plan(definitions, false);
  std::vector<CaseResult> results(cases.size());
  results[0].numbers["support_mean"] = 6.5;
  report::Report report;
  report.results = make_table(definitions, cases, results);
  report.provenance.experiment_toml = record(definitions, false, cases);
  for (std::size_t row = 0; row < cases.size(); ++row) {
    for (const auto& [name, value] : cases[row].parameters) {
      report::Column& column = *find(report, name);
      column.info.missing_reason.clear();
      if (column.info.is_text) {
        column.texts[row] = std::get<std::string>(value);
      } else {
        column.numbers[row] = number_of(value);
      }
    }
  }
  return report;
}

void add_texts(report::Report& report, const char* name, std::vector<std::string> texts) {
  report::Column column;
  column.info.name = name;
  column.info.is_text = true;
  column.texts = std::move(texts);
  report.results.push_back(std::move(column));
}

}  // namespace

TEST_CASE("parameters are put right as a new run records them, results are left") {
  report::Report report = as_it_was();
  CHECK(report.find("length")->numbers == std::vector<double>{1024, 40});
  const Migrated migrated = migrate(report);
  CHECK(report.find("length")->numbers == std::vector<double>{512, 40});
  CHECK(report.find("head_dim")->numbers == std::vector<double>{32, 64});
  for (const double variance : report.find("query_variance")->numbers) CHECK(std::isnan(variance));
  CHECK(std::isnan(report.find("seed")->numbers[0]));
  CHECK(report.find("seed")->numbers[1] == 1);
  CHECK(report.find("text")->texts == std::vector<std::string>{"gpl-3", ""});
  CHECK(report.find("seed")->info.missing_reason == kWithoutEffect);
  CHECK(report.find("support_mean")->numbers[0] == 6.5);
  // length, head_dim, seed, 2 x query_variance; text, layer, head; 2 x call, batch_entry, scale
  CHECK(migrated.parameters == 14);
  CHECK(migrate(report).parameters == 0);
}

TEST_CASE("names of kernels that were spoilt are taken from the declared kernel") {
  report::Report report = as_it_was();
  add_texts(report, "implementation", {"large_dims/2-split", "wmma/1-scalar"});
  add_texts(report, "kernel", {"partial_scores, long", "scalar"});
  add_texts(report, "kernel_counter", {"unnamed><float>", "64>"});
  CHECK(migrate(report).kernel_names == 2);
  CHECK(report.find("kernel_counter")->texts == std::vector<std::string>{"partial_scores", "attention"});
  CHECK(migrate(report).kernel_names == 0);
}

TEST_CASE("a report that does not tell what its cases are is refused") {
  report::Report report = as_it_was();
  report.provenance.experiment_toml.clear();
  CHECK_THROWS_WITH_AS(migrate(report), "/provenance holds no definition of the experiment 'captured'",
                       ReportError);
  report::Report empty;
  CHECK(migrate(empty).parameters == 0);
}
