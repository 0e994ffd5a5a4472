#include "report/merge.h"

#include <doctest/doctest.h>

#include "core/error.h"
#include "report/io.h"
#include "report/tests/example_report.h"
#include "report/tests/report_equality.h"

using namespace splash;
using namespace splash::report;
using namespace splash::report::testing;

namespace {

// A shard that holds the cases with the given indices of one run.
Report shard(const std::vector<double>& indices, int64_t samples = 3) {
  Report report;
  report.title = "sweep";
  report.run_id = fmt::format("from-{}", indices.empty() ? -1 : indices.front());
  report.status = "partial";
  report.provenance = example_report().provenance;
  std::vector<std::string> ids;
  std::vector<double> squares;
  for (const double index : indices) {
    ids.push_back(fmt::format("case-{}", index));
    squares.push_back(index * index);
    Attachment map{.case_id = ids.back(),
                   .name = "map",
                   .units = "1",
                   .long_name = "a map",
                   .formula = "",
                   .dimensions = {"x"},
                   .extents = {1},
                   .numbers = {index}};
    report.attachments.push_back(map);
  }
  report.results = {text_column("case_id", ids), number_column("case_index", indices, true),
                    number_column("square", squares), time_column(squares, samples)};
  report.claims.resize(1);
  return report;
}

Report merge(const std::vector<Report>& shards) {
  return merge_reports(shards);
}

}  // namespace

TEST_CASE("shards become one report in the order of case_index") {
  const Report merged = merge({shard({0, 3}), shard({4, 1}), shard({2})});
  CHECK(merged.cases() == 5);
  CHECK(merged.find("case_index")->numbers == std::vector<double>{0, 1, 2, 3, 4});
  CHECK(merged.find("square")->numbers == std::vector<double>{0, 1, 4, 9, 16});
  CHECK(merged.find("case_id")->texts[3] == "case-3");
  CHECK(merged.find("time")->numbers[9] == shard({0, 3}).find("time")->numbers[3]);
  CHECK(merged.attachments.size() == 5);
  CHECK(merged.claims.empty());
  CHECK(merged.status == "complete");
  const ScratchFolder folder;
  write_report(folder.file("merged.h5"), merged);
  check_same(merged, read_report(folder.file("merged.h5")));
}

TEST_CASE("columns are united, and narrower samples padded") {
  Report wide = shard({1}, 5);
  wide.results.push_back(number_column("extra", {7}));
  wide.results.push_back(text_column("remark", {"ok"}));
  const Report merged = merge({shard({0}), wide});
  CHECK(same_numbers(merged.find("extra")->numbers, {kMissing, 7}));
  CHECK(!merged.find("extra")->info.missing_reason.empty());
  CHECK(merged.find("remark")->texts == std::vector<std::string>{"", "ok"});
  CHECK(merged.find("time")->width == 5);
  CHECK(std::isnan(merged.find("time")->numbers[3]));
  CHECK(merged.find("time")->numbers[9] == wide.find("time")->numbers[4]);
}

TEST_CASE("a case in two shards must agree, but for time") {
  Report again = shard({1, 2});
  again.results[3] = time_column({5, 6}, 3);  // measured again
  again.results.push_back(number_column("extra", {7, 8}));
  const Report merged = merge({shard({0, 1}), again});
  CHECK(merged.cases() == 3);
  CHECK(merged.find("time")->numbers[3] == shard({0, 1}).find("time")->numbers[3]);
  CHECK(same_numbers(merged.find("extra")->numbers, {kMissing, 7, 8}));

  again.results[2].numbers[0] = 99;
  CHECK_THROWS_WITH_AS(merge({shard({0, 1}), again}), doctest::Contains("different values of square"),
                       ReportError);
  Report other = shard({1});
  other.attachments[0].numbers[0] = 99;
  CHECK_THROWS_WITH_AS(merge({shard({0, 1}), other}), doctest::Contains("case-1/map"), ReportError);
}

TEST_CASE("machines are listed, times span, interruptions stay") {
  Report second = shard({1});
  second.provenance.host = "elsewhere";
  second.provenance.started = "2024-01-01T00:00:00Z";
  second.provenance.finished = "2026-01-01T00:00:00Z";
  second.status = "interrupted";
  second.ceilings = {{"dram", "", "bytes/s", "", 1, 1, 1, 1}, {"l2", "", "bytes/s", "", 2, 2, 2, 2}};
  Report first = shard({0});
  first.ceilings = {{"dram", "", "bytes/s", "", 3, 3, 3, 3}};
  const Report merged = merge({first, second});
  CHECK(merged.provenance.host == "host; elsewhere");
  CHECK(merged.provenance.cpu == "cpu");
  CHECK(merged.provenance.started == "2024-01-01T00:00:00Z");
  CHECK(merged.provenance.finished == "2026-01-01T00:00:00Z");
  CHECK(merged.status == "interrupted");
  REQUIRE(merged.ceilings.size() == 2);
  CHECK(merged.ceilings[0].measured == 3);
}

TEST_CASE("numbers of a GPU are kept where all shards ran on that one") {
  const Report first = shard({0});
  Report second = shard({1});
  CHECK(merge({first, second}).provenance.multiprocessors == 132);
  second.provenance.multiprocessors = 114;
  CHECK(merge({first, second}).provenance.multiprocessors == 0);
  CHECK(merge({first, second}).provenance.compute_capability == 90);
  second.provenance.gpu = "another";
  CHECK(merge({first, second}).provenance.compute_capability == 0);
}

TEST_CASE("what is not the same run is not merged") {
  const auto refuse = [](const char* why, auto change) {
    Report other = shard({1});
    change(other);
    CHECK_THROWS_WITH_AS(merge({shard({0}), other}), doctest::Contains(why), ReportError);
  };
  refuse("commits differ (fff and 0123abc)", [](Report& r) { r.provenance.commit = "fff"; });
  refuse("experiments differ (other and sweep)", [](Report& r) {
    r.provenance.experiment_toml = "x";
    r.title = "other";
  });
  refuse("working trees differ", [](Report& r) { r.provenance.dirty = false; });
  refuse("seeds differ", [](Report& r) { r.provenance.seed = 5; });
  refuse("input hashes differ", [](Report& r) { r.provenance.input_hashes = "q=2e"; });
  refuse("column square", [](Report& r) { r.results[2].info.units = "s"; });
  CHECK_THROWS_AS(merge({}), ReportError);
}

TEST_CASE("without case_index the order is that of the shards, without case_id nothing is dropped") {
  Report a = shard({5}), b = shard({5});
  for (Report* report : {&a, &b}) {
    report->results.erase(report->results.begin(), report->results.begin() + 2);
    report->attachments.clear();
  }
  CHECK(merge({a, b}).find("square")->numbers == std::vector<double>{25, 25});
}
