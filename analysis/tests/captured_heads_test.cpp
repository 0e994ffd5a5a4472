#include "analysis/captured_heads.h"

#include <doctest/doctest.h>

#include "analysis/tests/example_capture.h"
#include "core/error.h"
#include "report/tests/example_report.h"

using namespace splash;
using namespace splash::analysis;
using namespace splash::analysis::testing;
using namespace splash::report::testing;

namespace {

using Doubles = std::vector<double>;

struct MethodFile {
  // kv_heads: key heads of the model that the file holds, two of them; empty: all.
  explicit MethodFile(const std::string& method, const std::vector<int64_t>& kv_heads = {}) {
    write_capture(path, {.method = method, .kv_heads = kv_heads});
  }
  std::optional<CapturedHeads> heads(int64_t layer) const {
    return read_captured_heads(path, layer, ExampleCapture{}.shape);
  }

  ScratchFolder folder;
  std::string path = folder.file("capture.h5");
};

std::string method_of(const std::string& layers, const std::string& otherwise = R"({"kind": "softmax"})") {
  return R"({"schema": "splash attention method 1", "name": "x", "default": )" + otherwise +
         R"(, "layers": {)" + layers + "}}";
}

std::string alpha_of_3(const std::string& alpha) {
  return method_of(R"("3": {"kind": "entmax", "alpha": )" + alpha + "}");
}

// The sentence that refuses layer 3, without the file's name; "" if it is taken.
std::string method_refusal(const std::string& method, const std::vector<int64_t>& kv_heads = {}) {
  const MethodFile file(method, kv_heads);
  try {
    file.heads(3);
  } catch (const ReportError& error) {
    return std::string(error.what()).substr(file.path.size() + 2);
  }
  return "";
}

}  // namespace

TEST_CASE("a method tells alpha and factor of each head of a layer") {
  const MethodFile file(method_of(
      R"("3": {"kind": "entmax", "alpha": [1.25, 1.5, 1.75, 2], "factor": [0.5, 1, 0.25, 3], "k_keep": 64},
         "8": {"kind": "window-softmax", "window": 7})",
      R"({"kind": "entmax", "factor": 0.5})"));
  const auto listed = file.heads(3);
  REQUIRE(listed.has_value());
  CHECK(listed->kind == "entmax");
  CHECK(listed->alpha == Doubles{1.25, 1.5, 1.75, 2});
  CHECK(listed->factor == Doubles{0.5, 1, 0.25, 3});
  const auto otherwise = file.heads(7);  // the default, whose alpha is 1.5
  CHECK(otherwise->alpha == Doubles(4, 1.5));
  CHECK(otherwise->factor == Doubles(4, 0.5));
  CHECK(file.heads(8)->kind == "window-softmax");
  CHECK(file.heads(8)->alpha.empty());
  CHECK_FALSE(MethodFile("").heads(3).has_value());
}

TEST_CASE("a list is of the model's heads, of which a file may hold a part") {
  const std::string listed = alpha_of_3("[1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8]");  // 4 key heads
  CHECK(MethodFile(listed, {0, 1}).heads(3)->alpha == Doubles{1.1, 1.2, 1.3, 1.4});
  CHECK(MethodFile(listed, {3, 1}).heads(3)->alpha == Doubles{1.7, 1.8, 1.3, 1.4});
  CHECK(MethodFile(listed, {3, 1}).heads(3)->factor == Doubles(4, 1));
  CHECK(method_refusal(listed) ==
        "the attribute method: alpha of layer 3 has 8 entries; the file holds 4 query heads");
  CHECK(method_refusal(listed, {0, 4}) ==
        "the attribute method: alpha of layer 3 has 8 entries, 2 a key head; the file holds the key head 4");
  CHECK(method_refusal(listed, {0, -1}) ==
        "the attribute method: alpha of layer 3 has 8 entries, 2 a key head; the file holds the key head -1");
  CHECK(method_refusal(listed, {0, 1, 2}) == "/kv_head lists 3 key heads; the tensors have 2");
  CHECK(method_refusal(alpha_of_3("[1.1, 1.2, 1.3, 1.4, 1.5]"), {0, 1}) ==
        "the attribute method: alpha of layer 3 has 5 entries; the file holds 4 query heads, 2 a key head");
}

TEST_CASE("a hostile method is refused in one sentence") {
  const std::string at = "the attribute method: ";
  CHECK(method_refusal("{") == at + "it is not JSON");
  CHECK(method_refusal(std::string(100000, '[')) == at + "it is not JSON");
  CHECK(method_refusal("greedy") == at + "it is not JSON");
  for (const std::string other : {"[]", "7", "null", "{}", R"({"schema": 1})", R"({"schema": "other 1"})"})
    CHECK(method_refusal(other) == at + "its schema is not \"splash attention method 1\"");
  const std::string schema = R"({"schema": "splash attention method 1")";
  CHECK(method_refusal(schema + "}") == at + "it has neither layer 3 nor a default");
  CHECK(method_refusal(schema + R"(, "layers": [1]})") == at + "its layers are no object");
  for (const char* layer : {"1", "{}", R"({"kind": 3})", "null"})
    CHECK(method_refusal(method_of(R"("3": )" + std::string(layer))) == at + "layer 3 has no kind");
  for (const char* alpha : {"true", R"("1.5")", "null", "{}", R"([1.5, "x", 1.5, 1.5])", "[[1.5], 1.5]"})
    CHECK(method_refusal(alpha_of_3(alpha)) ==
          at + "alpha of layer 3 must be a number, or a list with one a query head");
  for (const char* alpha : {"1", "[1.5, 1, 1.5, 1.5]"})
    CHECK(method_refusal(alpha_of_3(alpha)) == at + "alpha of layer 3 is 1; entmax takes 1.000001 to 64");
  for (const char* alpha : {"-1.5", "0", "65", "1e300"})
    CHECK(method_refusal(alpha_of_3(alpha)).ends_with("entmax takes 1.000001 to 64"));
  for (const char* alpha : {"NaN", "Infinity", "1e999"})  // no JSON, or beyond a double
    CHECK(method_refusal(alpha_of_3(alpha)) == at + "it is not JSON");
  CHECK(method_refusal(alpha_of_3("[]")) ==
        at + "alpha of layer 3 has 0 entries; the file holds 4 query heads");
  CHECK(method_refusal(alpha_of_3("[1.5, 1.5, 1.5]")) ==
        at + "alpha of layer 3 has 3 entries; the file holds 4 query heads");
  for (const char* factor : {"0", "-1", "1e300", "1e-300", "[1, 1, 1, 0]"})
    CHECK(method_refusal(method_of(R"("3": {"kind": "entmax", "factor": )" + std::string(factor) + "}"))
              .ends_with("a factor must be above 0 and finite, in float32"));
  CHECK(method_refusal(alpha_of_3("1.5")).empty());
  AttentionShape many = ExampleCapture{}.shape;
  many.q_heads = int64_t{1} << 40;
  CHECK_THROWS_WITH_AS(read_captured_heads(MethodFile(alpha_of_3("1.5")).path, 3, many),
                       doctest::Contains("at most 65536 are taken"), ReportError);
  CHECK_THROWS_AS(read_captured_heads("none.h5", 3, ExampleCapture{}.shape), ReportError);
}

TEST_CASE("the shipped converted model has alphas of its three heads") {
  const AttentionShape shape{
      .batch = 1, .q_heads = 3, .kv_heads = 1, .q_len = 384, .kv_len = 2048, .head_dim = 64};
  const std::string path = SPLASH_SOURCE_DIR "/data/captures/smollm2-converted.h5";
  const auto heads = read_captured_heads(path, 0, shape);
  REQUIRE(heads.has_value());
  CHECK(heads->kind == "entmax");
  CHECK(heads->alpha == Doubles{1.4132568836212158, 1.4095686674118042, 1.4143409729003906});
  CHECK(heads->factor == Doubles{0.3287191390991211, 0.3224264979362488, 0.38694876432418823});
}
