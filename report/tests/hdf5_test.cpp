#include <bit>
#include <cmath>
#include <fstream>
#include <numeric>

#include <doctest/doctest.h>

#include "core/error.h"
#include "report/hdf5/file.h"
#include "report/hdf5/internal.h"
#include "report/tests/example_report.h"

using namespace splash;
using namespace splash::report;
using namespace splash::report::hdf5;

namespace {

std::string captured() {
  // The tests are in report/tests of the source tree.
  const std::filesystem::path source = std::filesystem::path(__FILE__).parent_path();
  return source / "../../data/captures/minilm.h5";
}

void save(const File& file, const std::string& path) {
  const std::vector<std::byte> image = file.image();
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(image.data()), static_cast<std::streamsize>(image.size()));
}

// Every number of 16 bits, [256, 256], in a dataset of that order of bytes.
void save_halves(const std::string& path, H5T_order_t order) {
  const Handle type(H5Tcopy(H5T_IEEE_F32LE)),
      file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT));
  H5Tset_fields(type.id(), 15, 10, 5, 0, 10);
  H5Tset_size(type.id(), 2);
  H5Tset_ebias(type.id(), 15);
  H5Tset_order(type.id(), order);
  std::vector<uint16_t> numbers(1 << 16);
  std::iota(numbers.begin(), numbers.end(), uint16_t{0});
  const hsize_t extents[] = {256, 256};
  const Handle space(H5Screate_simple(2, extents, nullptr)),
      dataset(H5Dcreate2(file.id(), "halves", type.id(), space.id(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  H5Dwrite(dataset.id(), type.id(), H5S_ALL, H5S_ALL, H5P_DEFAULT, numbers.data());
}

}  // namespace

TEST_CASE("numbers, texts and attributes come back") {
  const ScratchFolder folder;
  const std::string path = folder.file("x.h5");
  {
    const File file = File::in_memory("x");
    Group group = file.root().create_group("zebra");
    Dataset numbers = group.create_doubles("numbers", {2, 3}, std::vector<double>{1, 2, 3, 4, 5, 1e300});
    numbers.set_text("units", "µs");
    numbers.set_integer("count", -5);
    group.create_integers("integers", {2}, std::vector<int64_t>{INT64_MIN, INT64_MAX});
    group.create_texts("texts", {3}, std::vector<std::string>{"", "ä", "two\nlines"});
    file.root().create_group("ant");
    save(file, path);
  }
  const Group root = File::open(path).root();
  CHECK(root.names() == std::vector<std::string>{"zebra", "ant"});  // in order of creation
  const Dataset numbers = root.dataset("zebra/numbers");
  CHECK(numbers.extents() == Extents{2, 3});
  CHECK(numbers.doubles() == std::vector<double>{1, 2, 3, 4, 5, 1e300});
  CHECK(numbers.text_attribute("units") == "µs");
  CHECK(numbers.integer_attribute("count") == -5);
  CHECK(numbers.text_attribute("none", "else") == "else");
  CHECK(root.dataset("zebra/integers").integers() == std::vector<int64_t>{INT64_MIN, INT64_MAX});
  CHECK(root.dataset("zebra/texts").texts() == std::vector<std::string>{"", "ä", "two\nlines"});
  CHECK(root.has("zebra/texts"));
  CHECK(!root.has("zebra/none"));
  CHECK(!root.has("none/none"));
  CHECK(root.is_group("zebra"));
  CHECK(!root.is_group("zebra/texts"));
}

TEST_CASE("large arrays go through chunks and compression") {
  const ScratchFolder folder;
  std::vector<double> numbers(1000 * 700);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<double>(i % 1000);
  const File file = File::in_memory("x");
  file.root().create_doubles("tall", {1000, 700}, numbers);
  file.root().create_doubles("wide", {1, 700000}, numbers);
  save(file, folder.file("x.h5"));
  CHECK(std::filesystem::file_size(folder.file("x.h5")) < 1000000);
  CHECK(File::open(folder.file("x.h5")).root().dataset("tall").doubles() == numbers);
  CHECK(File::open(folder.file("x.h5")).root().dataset("wide").doubles() == numbers);
}

TEST_CASE("what is wrong is said in one sentence") {
  const ScratchFolder folder;
  const File file = File::in_memory("x");
  file.root().create_doubles("numbers", {2}, std::vector<double>{1, 2});
  file.root().create_text("text", "t");
  save(file, folder.file("x.h5"));
  const Group root = File::open(folder.file("x.h5")).root();
  CHECK_THROWS_WITH_AS(root.dataset("none"), doctest::Contains("there is no dataset /none"), ReportError);
  CHECK_THROWS_WITH_AS(root.group("none"), doctest::Contains("there is no group /none"), ReportError);
  CHECK_THROWS_WITH_AS(root.group("text"), doctest::Contains("/text is not a readable group"), ReportError);
  CHECK_THROWS_WITH_AS(root.dataset("text").doubles(), doctest::Contains("holds text, where numbers"),
                       ReportError);
  CHECK_THROWS_WITH_AS(root.dataset("numbers").texts(), doctest::Contains("holds numbers, where texts"),
                       ReportError);
  CHECK_THROWS_WITH_AS(root.dataset("numbers").integers(), doctest::Contains("where integers"), ReportError);
  CHECK_THROWS_WITH_AS(root.dataset("text").text_attribute("u"), doctest::Contains("no attribute u"),
                       ReportError);
  CHECK_THROWS_AS(root.dataset("numbers").floats({2}), InvalidArgument);
  CHECK_THROWS_AS(root.dataset("numbers").floats({0, 0}), InvalidArgument);
  CHECK_THROWS_AS(file.root().create_group("a/b"), InvalidArgument);
  CHECK_THROWS_AS(file.root().create_group(""), InvalidArgument);
  CHECK_THROWS_AS(file.root().create_integers("x", {3}, std::vector<int64_t>{1}), InvalidArgument);
  CHECK_THROWS_AS(file.root().create_text("text", "again"), ReportError);
  CHECK_THROWS_AS(File::open(folder.file("none.h5")), ReportError);
}

TEST_CASE("every number of 16 bits is read as HDF5 converts it, in both orders of bytes") {
  const ScratchFolder folder;
  const std::string path = folder.file("halves.h5");
  for (const H5T_order_t order : {H5T_ORDER_LE, H5T_ORDER_BE}) {
    CAPTURE(order);
    save_halves(path, order);
    const File file = File::open(path);
    const Dataset dataset = file.root().dataset("halves");
    const std::vector<double> expected = dataset.doubles();
    const std::vector<float> numbers = dataset.floats(), row = dataset.floats({3});
    REQUIRE(numbers.size() == expected.size());
    for (size_t i = 0; i < numbers.size(); ++i) {
      CAPTURE(i);
      if (std::isnan(expected[i])) {
        REQUIRE(std::isnan(numbers[i]));
      } else {
        REQUIRE(std::bit_cast<uint32_t>(numbers[i]) ==
                std::bit_cast<uint32_t>(static_cast<float>(expected[i])));
      }
    }
    CHECK(numbers[order == H5T_ORDER_LE ? 0x3C00 : 0x003C] == 1);
    REQUIRE(row.size() == 256);
    for (size_t i = 0; i < row.size(); ++i)
      REQUIRE(std::bit_cast<uint32_t>(row[i]) == std::bit_cast<uint32_t>(numbers[3 * 256 + i]));
  }
}

TEST_CASE("the captured queries are read from 16-bit floats") {
  const FloatArray whole = read_floats(captured(), "gpl-3/q");
  REQUIRE(whole.extents.size() == 4);
  CHECK(whole.extents[0] == 6);
  CHECK(whole.extents[1] == 12);
  CHECK(whole.extents[3] == 32);
  CHECK(whole.values.size() == static_cast<size_t>(element_count(whole.extents)));

  const FloatArray head = read_floats(captured(), "gpl-3/q", {3, 7});
  CHECK(head.extents == Extents{whole.extents[2], whole.extents[3]});
  const size_t start = (3 * 12 + 7) * head.values.size();
  CHECK(
      std::equal(head.values.begin(), head.values.end(), whole.values.begin() + static_cast<int64_t>(start)));
  double largest = 0;
  for (const float value : head.values) {
    largest = std::max(largest, static_cast<double>(std::abs(value)));
    if (std::abs(value) < 0x1p-14f) continue;
    const double scaled = std::ldexp(static_cast<double>(value), 10 - std::ilogb(value));
    REQUIRE(scaled == std::round(scaled));  // 11 significant bits
  }
  CHECK(largest > 0.1);
  CHECK(largest < 100);

  const std::vector<std::string> tokens = read_texts(captured(), "gpl-3/token");
  CHECK(static_cast<int64_t>(tokens.size()) == whole.extents[2]);
  CHECK(tokens.front() == "[CLS]");
  CHECK(contains(captured(), "gpl-3/k"));
  CHECK(!contains(captured(), "gpl-2/k"));
}
