#include "analysis/error_metrics.h"

#include <cmath>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include "analysis/counts.h"
#include "core/error.h"

using namespace splash;
using namespace splash::analysis;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

ErrorMetrics compare(const std::vector<double>& out, const std::vector<double>& ref) {
  return compare_arrays(out, ref);
}

}  // namespace

TEST_CASE("errors of small arrays") {
  const ErrorMetrics metrics = compare({1, 2, 3}, {1, 0, 4});
  CHECK(metrics.mse == doctest::Approx(5.0 / 3));
  CHECK(metrics.nmse == doctest::Approx(5.0 / 17));
  CHECK(metrics.max_error == 2);
}

TEST_CASE("equal arrays have no error") {
  for (const auto& same :
       std::vector<std::vector<double>>{{}, {0, 0}, {1, -2}, {kNan, 1}, {kInfinity, -kInfinity}}) {
    const ErrorMetrics metrics = compare(same, same);
    CHECK(metrics.mse == 0);
    CHECK(metrics.nmse == 0);
    CHECK(metrics.max_error == 0);
  }
}

TEST_CASE("what is not finite on one side only shows") {
  CHECK(std::isnan(compare({kNan, 1}, {0, 1}).max_error));
  CHECK(std::isnan(compare({0, 1}, {kNan, 1}).max_error));
  CHECK(std::isnan(compare({kNan}, {kInfinity}).max_error));
  CHECK(compare({kInfinity}, {1}).max_error == kInfinity);
  CHECK(compare({kInfinity}, {-kInfinity}).max_error == kInfinity);
  CHECK(compare({1}, {0}).nmse == kInfinity);
  CHECK_THROWS_AS(compare({1}, {}), InvalidArgument);
}

TEST_CASE("recall of sets") {
  const auto share = [](std::vector<int32_t> found, std::vector<int32_t> reference) {
    return recall(found, reference);
  };
  CHECK(share({3, 1, 2}, {2, 3}) == 1);
  CHECK(share({1, 9}, {2, 1, 4, 3}) == 0.25);
  CHECK(share({}, {1}) == 0);
  CHECK(share({1}, {}) == 1);
}

TEST_CASE("counts") {
  static_assert(forward_flops(10, 64) == 2560);
  static_assert(backward_flops(10, 64) == 6400);
  static_assert(sparsity(25, 100) == 0.75);
  static_assert(sparsity(0, 0) == 0);
  static_assert(arithmetic_intensity(10, 4) == 2.5);
}
