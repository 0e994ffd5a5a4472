#include "analysis/capture.h"

#include <filesystem>
#include <limits>

#include <doctest/doctest.h>

#include "analysis/tests/example_capture.h"
#include "core/error.h"
#include "report/tests/example_report.h"

using namespace splash;
using namespace splash::analysis;
using namespace splash::analysis::testing;
using namespace splash::report;
using namespace splash::report::testing;

namespace {

// The sentence that refuses a capture, without the file's name.
std::string refusal_of(const ExampleCapture& example,
                       const std::function<void(report::hdf5::Group&)>& change = {}) {
  const ScratchFolder folder;
  const std::string path = folder.file("capture.h5");
  write_capture(path, example, change);
  try {
    read_capture(path);
  } catch (const ReportError& error) {
    return std::string(error.what()).substr(path.size() + 2);
  }
  return "";
}

}  // namespace

TEST_CASE("a capture tells its layers, calls, extents, scales and mask") {
  const ScratchFolder folder;
  const std::string path = folder.file("capture.h5");
  const ExampleCapture example{.calls = 2};
  write_capture(path, example);
  const Capture capture = read_capture(path);
  CHECK(capture.layers == example.layers);
  REQUIRE(capture.calls.size() == 2);
  CHECK(capture.calls[1].shape == example.shape);
  CHECK(capture.calls[1].scale == example.scale);
  CHECK(capture.calls[1].causal);
}

TEST_CASE("importances are read where a capture holds them") {
  const auto with = [](std::vector<double> values) {
    return [values](report::hdf5::Group& call) {
      call.create_doubles("importance", {static_cast<int64_t>(values.size())}, values);
    };
  };
  const ScratchFolder folder;
  const std::string path = folder.file("capture.h5");
  write_capture(path, {}, with({0.25, 0}));
  CHECK(read_capture(path).calls[0].importance == std::vector<double>{0.25, 0});
  write_capture(path, {});
  CHECK(read_capture(path).calls[0].importance.empty());
  CHECK(refusal_of({}, with({1})) ==
        "/call-0/importance holds 1 numbers; there must be one for each of the 2 layers");
  CHECK(refusal_of({}, with({1, -1})) ==
        "/call-0/importance holds -1; an importance must be finite and at least 0");
}

TEST_CASE("tensors come whole, by layer and by head") {
  const ScratchFolder folder;
  const std::string path = folder.file("capture.h5");
  write_capture(path, {.calls = 2});
  const Tensor<float> all = read_captured_tensor(path, 1, "q", {});
  CHECK(all.batch() == 4);  // two layers of two batch entries
  CHECK(all.heads() == 4);
  CHECK(all.row(3, 2, 5)[1] == static_cast<float>(example_value("q", 1, {1, 1, 2, 5, 1})));
  const Tensor<float> layer = read_captured_tensor(path, 0, "k", {1});
  CHECK(layer.batch() == 2);
  CHECK(layer.row(1, 1, 11)[3] == static_cast<float>(example_value("k", 0, {1, 1, 1, 11, 3})));
  const Tensor<float> head = read_captured_tensor(path, 0, "v", {0, 1, 1});
  CHECK(head.size() == 12 * 4);
  CHECK(head.row(0, 0, 2)[0] == static_cast<float>(example_value("v", 0, {0, 1, 1, 2, 0})));
}

TEST_CASE("what is no capture is refused in one sentence") {
  ExampleCapture example;
  CHECK(refusal_of(example).empty());
  example.scale = {0.5};
  CHECK(refusal_of(example) == "/call-0/scale holds 1 numbers; there must be one for each of the 2 layers");
  example.scale = {0.5, 0};
  CHECK(refusal_of(example) == "/call-0/scale holds 0; a scale must be finite and not 0");
  example = {.layers = {3, 3}};
  CHECK(refusal_of(example) == "/layer names a layer twice");
  example = {.calls = 0};
  CHECK(refusal_of(example) == "holds no call of the model, no group /call-0");
  example = {};
  example.shape.kv_heads = 3;
  CHECK(refusal_of(example).starts_with("/call-0: q_heads is 4"));
  const ScratchFolder folder;
  const std::string path = folder.file("x.h5");
  {
    const report::hdf5::File file = report::hdf5::File::in_memory("x");
    file.root().create_text("title", "x");
    const auto image = file.image();
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(image.data()), static_cast<std::streamsize>(image.size()));
  }
  CHECK_THROWS_WITH_AS(read_capture(path), doctest::Contains("is no capture"), ReportError);
  CHECK_THROWS_WITH_AS(read_capture(folder.file("none.h5")), doctest::Contains("no such file"), ReportError);
  CHECK_THROWS_AS(read_captured_tensor(path, 0, "q", {}), ReportError);
}

TEST_CASE("tensors that do not fit together are refused") {
  const ScratchFolder folder;
  const std::string path = folder.file("x.h5");
  const auto write = [&](const report::hdf5::Extents& v, double value) {
    const report::hdf5::File file = report::hdf5::File::in_memory("x");
    report::hdf5::Group root = file.root();
    root.set_text("schema", kCaptureSchema);
    root.create_integers("layer", {1}, std::vector<int64_t>{0});
    report::hdf5::Group call = root.create_group("call-0");
    for (const char* name : {"q", "k", "v"}) {
      const report::hdf5::Extents extents =
          name == std::string("v") ? v : report::hdf5::Extents{1, 1, 2, 3, 4};
      call.create_doubles(
          name, extents,
          std::vector<double>(static_cast<size_t>(report::hdf5::element_count(extents)), value));
    }
    call.create_doubles("scale", {1}, std::vector<double>{1});
    call.set_integer("causal", 0);
    const auto image = file.image();
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(image.data()), static_cast<std::streamsize>(image.size()));
  };
  write({1, 1, 2, 5, 4}, 1);
  CHECK_THROWS_WITH_AS(read_capture(path),
                       doctest::Contains("/call-0/v has extents [1, 1, 2, 5, 4]; with these q and k they "
                                         "must be [1, 1, 2, 3, 4]"),
                       ReportError);
  write({1, 2, 3, 4}, 1);
  CHECK_THROWS_WITH_AS(read_capture(path), doctest::Contains("/call-0/v has 4 dimensions"), ReportError);
  write({1, 1, 2, 3, 4}, 1e300);  // infinite in float32
  CHECK_NOTHROW(read_capture(path));
  CHECK_THROWS_WITH_AS(read_captured_tensor(path, 0, "v", {}),
                       doctest::Contains("/call-0/v holds inf; every value must be finite in float32"),
                       ReportError);
}
