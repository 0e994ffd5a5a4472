#include <filesystem>
#include <fstream>

#include <doctest/doctest.h>

#include "core/error.h"
#include "report/hdf5/file.h"
#include "report/io.h"
#include "report/tests/example_report.h"
#include "report/tests/report_equality.h"

using namespace splash;
using namespace splash::report;
using namespace splash::report::testing;

namespace {

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Report round_trip(const Report& report) {
  const ScratchFolder folder;
  write_report(folder.file("report.h5"), report);
  return read_report(folder.file("report.h5"));
}

}  // namespace

TEST_CASE("a report with something of everything comes back as it went") {
  check_same(example_report(), round_trip(example_report()));
}

TEST_CASE("an empty report comes back, and so does one without cases") {
  check_same(Report{}, round_trip(Report{}));
  Report report = example_report();
  for (Column& column : report.results) {
    column.texts.clear();
    column.numbers.clear();
    column.info.missing_reason.clear();
  }
  report.ceilings.clear();
  report.claims.clear();
  report.attachments.clear();
  check_same(report, round_trip(report));
}

TEST_CASE("ten thousand cases come back, in a compressed file") {
  constexpr int64_t kCases = 10000, kSamples = 20;
  Report report;
  std::vector<std::string> ids;
  std::vector<double> lengths, errors, seconds;
  for (int64_t i = 0; i < kCases; ++i) {
    ids.push_back(fmt::format("case-{:08x}", i * 2654435761u));
    lengths.push_back(static_cast<double>(128 << (i % 10)));
    errors.push_back(i % 7 == 0 ? kMissing : 1e-9 * static_cast<double>(i));
    seconds.push_back(1e-3 * static_cast<double>(1 + i % 100));
  }
  report.results = {text_column("case_id", ids), number_column("kv_len", lengths, true),
                    number_column("mse", errors), time_column(seconds, kSamples)};
  report.results[2].info.missing_reason = "no reference";
  for (int64_t i = 0; i < 20; ++i)
    report.results.push_back(number_column(fmt::format("result_{}", i), lengths));

  const ScratchFolder folder;
  write_report(folder.file("big.h5"), report);
  check_same(report, read_report(folder.file("big.h5")));
  const auto uncompressed = kCases * (22 + kSamples) * 8;
  CHECK(std::filesystem::file_size(folder.file("big.h5")) < static_cast<uintmax_t>(uncompressed));
}

TEST_CASE("equal reports are equal files") {
  const ScratchFolder folder;
  write_report(folder.file("a.h5"), example_report());
  write_report(folder.file("b.h5"), example_report());
  CHECK(bytes_of(folder.file("a.h5")) == bytes_of(folder.file("b.h5")));
}

TEST_CASE("every dataset says its units, long name and formula") {
  const ScratchFolder folder;
  write_report(folder.file("report.h5"), example_report());
  const hdf5::File file = hdf5::File::open(folder.file("report.h5"));
  for (const char* group_name : {"provenance", "ceilings", "results", "claims", "attachments/c1"}) {
    const hdf5::Group group = file.root().group(group_name);
    for (const std::string& name : group.names()) {
      const hdf5::Dataset dataset = group.dataset(name);
      CAPTURE(dataset.path());
      CHECK(!dataset.text_attribute("units").empty());
      CHECK(!dataset.text_attribute("long_name").empty());
      CHECK(dataset.has_attribute("formula"));
    }
  }
  CHECK(file.root().dataset("README").text().find("xarray.open_dataset") != std::string::npos);
  CHECK(file.root().dataset("results/kv_len").text_attribute("role") == "parameter");
  CHECK(file.root().dataset("results/mse").text_attribute("role") == "result");
  CHECK(file.root().dataset("results/time").integer_attribute("reproducible") == 0);
  CHECK(file.root().dataset("results/time").dimension_names() == std::vector<std::string>{"case", "sample"});
  CHECK(file.root().dataset("claims/verdict").dimension_names() == std::vector<std::string>{"claim"});
  CHECK(file.root().dataset("claims/claim").is_scale());
}

TEST_CASE("numbers of a GPU that are not known are left out, as in older reports") {
  const ScratchFolder folder;
  Report report = example_report();
  report.provenance.multiprocessors = 0;
  write_report(folder.file("report.h5"), report);
  const hdf5::File file = hdf5::File::open(folder.file("report.h5"));
  CHECK(!file.root().group("provenance").has("multiprocessors"));
  CHECK(file.root().dataset("provenance/compute_capability").integer() == 90);
  check_same(read_report(folder.file("report.h5")), report);
}

TEST_CASE("missing numbers have a reason even where the caller gave none") {
  Report report;
  report.results = {number_column("mse", {1, kMissing}), number_column("nmse", {1, 2})};
  const Report read = round_trip(report);
  CHECK(!read.results[0].info.missing_reason.empty());
  CHECK(read.results[1].info.missing_reason.empty());
}

TEST_CASE("columns along one dimension are padded to the widest") {
  Report report;
  report.results = {time_column({1, 2}, 3), time_column({1, 2}, 5)};
  report.results[0].info.name = "narrow";
  const Report read = round_trip(report);
  CHECK(read.find("narrow")->width == 5);
  CHECK(read.find("narrow")->numbers[2] == report.results[0].numbers[2]);
  CHECK(std::isnan(read.find("narrow")->numbers[3]));
  CHECK(read.find("narrow")->numbers[5] == report.results[0].numbers[3]);
}

TEST_CASE("bytes that HDF5 or Python cannot take as text are replaced, not fatal") {
  Report report;
  report.title = std::string("a\0b", 3) + "\xff\xc3";
  report.provenance.argv = "\xed\xa0\x80 é";  // a surrogate is not UTF-8
  const Report read = round_trip(report);
  CHECK(read.title == "a\uFFFDb\uFFFD\uFFFD");
  CHECK(read.provenance.argv == "\uFFFD\uFFFD\uFFFD é");
}

TEST_CASE("a report that is none is refused before anything is written") {
  const ScratchFolder folder;
  const auto refuse = [&](auto change) {
    Report report = example_report();
    change(report);
    CHECK_THROWS_AS(write_report(folder.file("x.h5"), report), InvalidArgument);
  };
  refuse([](Report& r) { r.results[4].numbers.pop_back(); });
  refuse([](Report& r) { r.results.push_back(r.results[4]); });
  refuse([](Report& r) { r.results[4].info.name = "a/b"; });
  refuse([](Report& r) { r.results[4].info.name = ""; });
  refuse([](Report& r) { r.results[4].info.name = "case"; });
  refuse([](Report& r) { r.results[4].info.name = "sample"; });
  refuse([](Report& r) { r.results[5].info.dimension = "case"; });
  refuse([](Report& r) { r.results[5].info.dimension = ""; });
  refuse([](Report& r) { r.results[3].info.dimension = "sample"; });
  refuse([](Report& r) { r.dimensions[0].values.pop_back(); });
  refuse([](Report& r) { r.attachments[0].numbers.pop_back(); });
  refuse([](Report& r) { r.attachments[0].dimensions = {"key", "key"}; });
  refuse([](Report& r) { r.attachments[0].dimensions.pop_back(); });
  refuse([](Report& r) { r.attachments[0].labels["key"].pop_back(); });
  refuse([](Report& r) { r.attachments[0].labels["head"] = {}; });
  refuse([](Report& r) { r.attachments[1].name = "attention"; });
  refuse([](Report& r) { r.attachments[1].name = "key"; });
  refuse([](Report& r) { r.attachments[2].extents = {-2}; });
  refuse([](Report& r) { r.attachments[1].case_id = "a/b"; });
  CHECK(entries(folder) == 0);
}

TEST_CASE("what cannot be read is said in one sentence") {
  const ScratchFolder folder;
  const auto complaint = [&](const std::string& path) -> std::string {
    try {
      read_report(path);
    } catch (const ReportError& error) {
      return error.what();
    }
    return "";
  };
  CHECK(complaint(folder.file("none.h5")).find("no such file") != std::string::npos);
  CHECK(complaint(folder.file("")).find("is a folder") != std::string::npos);
  CHECK(complaint("/dev/null").find("not a regular file") != std::string::npos);
  std::ofstream(folder.file("empty.h5")) << "";
  CHECK(complaint(folder.file("empty.h5")).find("is empty") != std::string::npos);
  std::ofstream(folder.file("text.h5")) << "this is no HDF5";
  CHECK(complaint(folder.file("text.h5")).find("is not an HDF5 file") != std::string::npos);

  const auto write_image = [&](const hdf5::File& file) {
    const std::vector<std::byte> image = file.image();
    std::ofstream(folder.file("other.h5"), std::ios::binary)
        .write(reinterpret_cast<const char*>(image.data()), static_cast<std::streamsize>(image.size()));
  };
  hdf5::File other = hdf5::File::in_memory("other");
  other.root().create_integer("x", 1);
  write_image(other);
  CHECK(complaint(folder.file("other.h5")).find("not a report") != std::string::npos);
  other.root().create_group("results");
  other.root().set_integer("schema_version", 99);
  write_image(other);
  CHECK(complaint(folder.file("other.h5")).find("schema 99") != std::string::npos);
}

TEST_CASE("a report cut off anywhere is an error, never a crash") {
  const ScratchFolder folder;
  write_report(folder.file("whole.h5"), example_report());
  const std::string whole = bytes_of(folder.file("whole.h5"));
  const std::string cut = folder.file("cut.h5");
  const size_t content = whole.rfind("\nsplash-report fnv1a64");
  REQUIRE(content == whole.size() - 40);
  for (size_t length = 0; length < content; length += 1 + length / 40) {
    std::ofstream(cut, std::ios::binary | std::ios::trunc) << whole.substr(0, length);
    CAPTURE(length);
    CHECK_THROWS_AS(read_report(cut), ReportError);
  }
  for (const size_t missing : {1, 2, 20, 39, 41, 100}) {
    std::ofstream(cut, std::ios::binary | std::ios::trunc) << whole.substr(0, whole.size() - missing);
    CAPTURE(missing);
    CHECK_THROWS_WITH_AS(read_report(cut), doctest::Contains("truncated"), ReportError);
  }
}

TEST_CASE("a report with a flipped bit is an error, never a crash") {
  const ScratchFolder folder;
  const std::string path = folder.file("report.h5");
  write_report(path, example_report());
  const std::string whole = bytes_of(path);
  for (size_t at = 0; at < whole.size(); at += 61) {
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << (at % 8)));
    std::ofstream(path, std::ios::binary | std::ios::trunc) << flipped;
    CAPTURE(at);
    CHECK_THROWS_AS(read_report(path), ReportError);
  }
}

TEST_CASE("a report without its checksum line, as another program would leave it, is read") {
  const ScratchFolder folder;
  const std::string path = folder.file("report.h5");
  write_report(path, example_report());
  const std::string whole = bytes_of(path);
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      << whole.substr(0, whole.rfind("\nsplash-report fnv1a64"));
  check_same(example_report(), read_report(path));
}
