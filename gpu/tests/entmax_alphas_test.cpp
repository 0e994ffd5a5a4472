// Alphas that only the device knows: what the kernels use instead of refused ones, and NaN for their heads.

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "core/error.h"
#include "gpu/engine/device_vector.h"
#include "gpu/entmax/arguments/alphas.h"
#include "gpu/entmax/entmax.h"
#include "gpu/tests/skip_without_gpu.h"

using namespace splash;
using namespace splash::gpu;
using entmax::HeadResult;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// For each head of each batch entry, whether its floats are NaN. Checks that either all are, or none is and
// all are unchanged.
std::vector<bool> refused(const std::vector<float>& values, int64_t words) {
  std::vector<bool> heads;
  for (size_t at = 0; at < values.size(); at += static_cast<size_t>(words)) {
    const bool nan = std::isnan(values[at]);
    heads.push_back(nan);
    for (size_t i = at; i < at + static_cast<size_t>(words); ++i) {
      CHECK(std::isnan(values[i]) == nan);
      if (!nan) CHECK(values[i] == static_cast<float>(i));
    }
  }
  return heads;
}

std::vector<float> counted(int64_t n) {
  std::vector<float> values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  return values;
}

}  // namespace

TEST_CASE("the kernels take 1.5 in place of an alpha that they do not take") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  const std::vector<float> alpha{1.5f,
                                 2.0f,
                                 std::nextafter(1.0f, 2.0f),
                                 1.01f,
                                 std::nextafter(1.01f, 1.0f),
                                 1.0f,
                                 std::nextafter(2.0f, 3.0f),
                                 0.5f,
                                 kNan,
                                 kInfinity,
                                 -1.75f,
                                 -kInfinity,
                                 1.25f,
                                 0.0f,
                                 1.9f};
  std::vector<float> many(700, 1.3f);
  many.insert(many.end(), alpha.begin(), alpha.end());
  const DeviceBuffer given = uploaded(stream, many);
  DeviceBuffer taken(stream, given.bytes());
  taken.fill(0xFF);
  entmax::take_alphas(static_cast<const float*>(given.data()), static_cast<int>(many.size()),
                      static_cast<float*>(taken.data()), stream.handle());
  const auto result = downloaded<float>(taken);
  for (size_t i = 0; i < many.size(); ++i)
    CHECK(result[i] == (entmax::attention_takes(many[i]) ? many[i] : 1.5f));
}

TEST_CASE("heads whose alpha is not taken become NaN, and keys' heads that they share") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  constexpr int64_t kBatch = 3, kHeads = 6, kKeyHeads = 2, kWords = 1000, kKeyWords = 24;
  const DeviceBuffer alpha = uploaded<float>(stream, {1.5f, 1.2f, 2.0f, kNan, 1.7f, 2.5f});
  const DeviceBuffer one = uploaded<float>(stream, {1.0f});
  DeviceBuffer rows = uploaded(stream, counted(kBatch * kHeads * kWords));
  DeviceBuffer keys = uploaded(stream, counted(kBatch * kKeyHeads * kKeyWords));
  DeviceBuffer untouched = uploaded(stream, counted(kBatch * kHeads * kWords));
  entmax::refuse_heads(static_cast<const float*>(alpha.data()), 6, kBatch, kHeads,
                       {{{}, {rows.data(), kHeads, 4 * kWords}, {keys.data(), kKeyHeads, 4 * kKeyWords}}},
                       stream.handle());
  const auto of_rows = refused(downloaded<float>(rows), kWords);
  for (size_t i = 0; i < of_rows.size(); ++i) CHECK(of_rows[i] == (i % kHeads == 3 || i % kHeads == 5));
  const auto of_keys = refused(downloaded<float>(keys), kKeyWords);
  for (size_t i = 0; i < of_keys.size(); ++i) CHECK(of_keys[i] == (i % kKeyHeads == 1));
  const auto others = refused(downloaded<float>(untouched), kWords);
  CHECK(std::find(others.begin(), others.end(), true) == others.end());

  entmax::refuse_heads(static_cast<const float*>(one.data()), 1, kBatch, kHeads,
                       {{{untouched.data(), kHeads, 4 * kWords}}}, stream.handle());
  const auto all = refused(downloaded<float>(untouched), kWords);
  CHECK(std::find(all.begin(), all.end(), false) == all.end());
}

TEST_CASE("results that heads do not divide are refused") {
  const auto why = [](const HeadResult& result) {
    try {
      entmax::refuse_heads(nullptr, 1, 1, 6, {{result}}, nullptr);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  float data = 0;
  CHECK(why({&data, 4, 8}) == "a result has 4 heads; allowed: divisors of the 6 query heads");
  CHECK(why({&data, 0, 8}) == "a result has 0 heads; allowed: divisors of the 6 query heads");
  CHECK(why({&data, 3, 6}) == "a result has 6 bytes a head; allowed: multiples of 4");
  CHECK(why({}).empty());
}
