#include "experiments/claims/paper_table.h"

#include <cmath>

#include <doctest/doctest.h>

#include "experiments/tests/toy_kind.h"
#include "report/tests/example_report.h"

using namespace splash::experiments;
using namespace splash::report::testing;
using splash::experiments::tests::changed;
using splash::experiments::tests::contains;
using splash::experiments::tests::message_of;
using splash::report::kMissing;
using splash::report::Report;

namespace {

const std::string kPaper = R"(
paper = "A paper"
[[table]]
name = "t"
title = "times"
place = "table 1"
gpu = "H100"
unit = "ms"
column = "time"
experiment = "e"
reports = ["r.h5"]
over = "theirs old"
stated = { dtype = "float16" }
rows = { n = [1, 2, 3], empty = [0.5, 0.5, 0.5] }
[[table.series]]
name = "theirs old"
values = [8, 8, 8]
ours = ["old"]
[[table.series]]
name = "theirs new"
values = [2, 2, nan]
ours = ["new"]
[[table.series]]
name = "another"
values = [1, nan, nan]
why = "not built here"
)";

std::vector<PaperTable> tables_of(const std::string& toml) {
  return parse_paper_tables(toml, "p.toml");
}

// Two implementations at n 1 and 2; of n 1 "new" was also timed in another type. The share of empty tiles is
// on record for one implementation.
Report report_of(const std::string& gpu) {
  Report report;
  report.provenance.gpu = gpu;
  auto implementation = text_column("implementation", {"old", "new", "new", "old", "new"});
  auto dtype = text_column("dtype", {"float16", "bfloat16", "float16", "float16", "bfloat16"});
  implementation.info.is_parameter = dtype.info.is_parameter = true;
  auto time = number_column("time", {4e-3, 9e-3, 1e-3, 4e-3, 1e-3});
  time.info.units = "s";
  report.results = {text_column("experiment", std::vector<std::string>(5, "e")),
                    implementation,
                    dtype,
                    number_column("n", {1, 1, 1, 2, 2}, true),
                    time,
                    number_column("empty", {0.51, kMissing, kMissing, 0.7, kMissing})};
  return report;
}

}  // namespace

TEST_CASE("a paper's time is set beside ours: a ratio for the same problem, else what differs") {
  const PaperTable table = tables_of(kPaper).front();
  const std::vector<PaperLine> lines = compare_with_paper(table, {report_of("NVIDIA H100 80GB HBM3")});
  REQUIRE(lines.size() == 8);
  CHECK(lines[0].theirs == 8);
  CHECK(lines[0].ours == doctest::Approx(4));  // in the table's unit
  CHECK(lines[0].differs.empty());
  CHECK(lines[1].ours == doctest::Approx(1));  // the float16 case, not the nearer row of bfloat16
  CHECK(lines[1].differs.empty());
  CHECK(lines[2].theirs_name == "theirs old / theirs new");
  CHECK(lines[2].unit == "x");
  CHECK(lines[2].theirs == 4);
  CHECK(lines[2].ours == doctest::Approx(4));
  CHECK(lines[3].why == "not built here");
  CHECK(std::isnan(lines[3].ours));
  CHECK(lines[4].differs == "other empty (0.7)");
  CHECK(lines[5].differs == "other dtype (bfloat16), empty (0.7)");
  CHECK(lines[7].row == 2);  // the paper has an old time of n 3, and no new one
  CHECK(lines[7].ours_name == "old");
  CHECK(std::isnan(lines[7].ours));
}

TEST_CASE("another GPU makes times incomparable, and quotients not") {
  const std::vector<PaperLine> lines =
      compare_with_paper(tables_of(kPaper).front(), {report_of("NVIDIA H200"), report_of("NVIDIA H20")});
  CHECK(lines[0].differs == "other GPU (NVIDIA H200)");
  CHECK(lines[2].differs.empty());
  const auto nearest =
      compare_with_paper(tables_of(kPaper).front(), {report_of("NVIDIA H200"), report_of("NVIDIA H100")});
  CHECK(nearest[0].differs.empty());

  PaperTable unknown = tables_of(kPaper).front();
  unknown.gpu = "";
  CHECK(compare_with_paper(unknown, {report_of("NVIDIA H200")})[0].differs == "GPU not stated");
  unknown.not_stated = {"batch"};
  CHECK(compare_with_paper(unknown, {report_of("NVIDIA H200")})[2].differs == "problem not fully stated");
  Report without = report_of("NVIDIA H100");
  without.results.pop_back();
  CHECK(compare_with_paper(tables_of(kPaper).front(), {without})[0].differs == "not known here: empty");
  CHECK(std::isnan(compare_with_paper(tables_of(kPaper).front(), {})[0].ours));
}

TEST_CASE("faults of a paper's file are named") {
  const auto fault = [](const std::string& from, const std::string& to) {
    return message_of([&] { tables_of(changed(kPaper, from, to)); });
  };
  CHECK(contains(fault("\"ms\"", "\"h\""), "'unit' is s, ms, us, MiB or 1, not 'h'"));
  CHECK(contains(fault("[2, 2, nan]", "[2, 2]"), "series 'theirs new' needs 'values', a list of 3 numbers"));
  CHECK(contains(fault("[2, 2, nan]", "[2, 2, 'x']"), "a value of 'theirs new' is not a number"));
  CHECK(contains(fault("why =", "wy ="), "lacks 'why'"));
  CHECK(contains(fault("over = \"theirs old\"", "over = \"another\""), "'over' names 'another'"));
  CHECK(contains(fault("[0.5, 0.5, 0.5]", "[0.5]"), "'empty' has 1 values, where the table has 3 rows"));
  CHECK(contains(fault("[\"new\"]", "[1]"), "'ours' must be a list of texts"));
  CHECK(contains(fault("place", "plaec"), "lacks 'place'"));
}
