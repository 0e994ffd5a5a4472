// entmax of a matrix's rows in device memory, against the CPU's in double on the same rounded scores.

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include "core/error.h"
#include "core/random.h"
#include "cpu_ref/entmax/rows.h"
#include "gpu/engine/tensor.h"
#include "gpu/entmax/rows.h"
#include "gpu/tests/skip_without_gpu.h"

using namespace splash;
using namespace splash::gpu;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Rows {
  std::vector<double> values, d_alpha;  // [rows * n], [rows]
};

Tensor<double> matrix(const std::vector<double>& values, int64_t rows) {
  Tensor<double> result(1, 1, rows, static_cast<int64_t>(values.size()) / rows);
  std::ranges::copy(values, result.data());
  return result;
}

// What the kernels write over poison.
class OnDevice {
 public:
  OnDevice(Dtype dtype, const std::vector<double>& alpha, int64_t rows, int64_t n)
      : dtype_(dtype), rows_(rows), n_(n), alphas_(static_cast<int64_t>(alpha.size())) {
    alpha_ = DeviceBuffer(stream_, alphas_ * int64_t{sizeof(double)});
    alpha_.upload(alpha.data(), alpha_.bytes());
  }

  Rows forward(const std::vector<double>& scores) {
    const DeviceTensor x = DeviceTensor::from(stream_, dtype_, matrix(scores, rows_));
    DeviceTensor p = poisoned();
    entmax::entmax_rows(dtype_, x.view().data, alpha(), alphas_, rows_, n_, p.view().data, stream_.handle());
    return {host(p), {}};
  }

  Rows gradient(const std::vector<double>& p, const std::vector<double>& d_p) {
    const DeviceTensor on_p = DeviceTensor::from(stream_, dtype_, matrix(p, rows_));
    const DeviceTensor on_d_p = DeviceTensor::from(stream_, dtype_, matrix(d_p, rows_));
    DeviceTensor ds = poisoned();
    DeviceBuffer d_alpha(stream_, rows_ * int64_t{sizeof(double)});
    d_alpha.fill(0xFF);
    entmax::entmax_rows_gradient(dtype_, on_p.view().data, on_d_p.view().data, alpha(), alphas_, rows_, n_,
                                 ds.view().data, static_cast<double*>(d_alpha.data()), stream_.handle());
    Rows result{host(ds), std::vector<double>(rows_)};
    d_alpha.download(result.d_alpha.data(), d_alpha.bytes());
    return result;
  }

 private:
  DeviceTensor poisoned() {
    DeviceTensor tensor(stream_, dtype_, {1, 1, rows_, n_});
    tensor.buffer().fill(0xFF);
    return tensor;
  }
  static std::vector<double> host(const DeviceTensor& tensor) {
    const Tensor<double> values = tensor.to_host();
    return {values.data(), values.data() + values.size()};
  }
  const double* alpha() const { return static_cast<const double*>(alpha_.data()); }

  const Stream stream_;
  Dtype dtype_;
  int64_t rows_, n_, alphas_;
  DeviceBuffer alpha_;
};

void check_alike(const std::vector<double>& mine, const std::vector<double>& expected, double bound) {
  REQUIRE(mine.size() == expected.size());
  int wrong = 0;
  for (size_t i = 0; i < mine.size(); ++i) {
    if (std::isnan(expected[i]) ? !std::isnan(mine[i])
                                : !(std::abs(mine[i] - expected[i]) <= bound * (1 + std::abs(expected[i]))))
      ++wrong;
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("entmax of rows: values and gradients are the CPU's") {
  SKIP_WITHOUT_GPU();
  const std::vector<double> alpha{1.5, 1.05, 1.2, 1.5, 2.0, 1.5, 2.0, 1.9, 2.5};
  const auto rows = static_cast<int64_t>(alpha.size());
  for (const Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::f16, Dtype::bf16}) {
    for (const int64_t n : {1, 2, 31, 256, 1000, 9999}) {
      CAPTURE(to_string(dtype));
      CAPTURE(n);
      const CounterRandom random(static_cast<uint64_t>(n));
      std::vector<double> scores(rows * n), d_p(rows * n), p(rows * n), ds(rows * n), d_alpha(rows);
      for (int64_t i = 0; i < rows * n; ++i) {
        scores[i] = round_to(dtype, 3 * random.normal(i));
        d_p[i] = round_to(dtype, random.normal(rows * n + i));
      }
      for (int64_t j = 1; j < n; ++j) {
        scores[j] = -kInfinity;                    // one key
        scores[3 * n + j] = scores[3 * n];         // ties
        scores[5 * n + j] = scores[5 * n] - 1000;  // one far above
      }
      for (int64_t j = 0; j < n; ++j) scores[4 * n + j] = -kInfinity;
      scores[6 * n + n / 2] = kNan;
      scores[7 * n + n - 1] = kInfinity;
      cpu_ref::entmax_rows<double>(scores, alpha, rows, p);
      OnDevice device(dtype, alpha, rows, n);
      const double bound = 16 * std::max(unit_roundoff(dtype), dtype == Dtype::f64 ? 0 : 1e-6);
      check_alike(device.forward(scores).values, p, bound);
      for (double& value : p) value = round_to(dtype, value);
      cpu_ref::entmax_rows_gradient<double>(p, d_p, alpha, rows, ds, d_alpha);
      const Rows gradient = device.gradient(p, d_p);
      check_alike(gradient.values, ds, 64 * bound);
      check_alike(gradient.d_alpha, d_alpha, dtype == Dtype::f64 ? 1e-9 : 1e-3);
    }
  }
}

TEST_CASE("entmax of rows: an alpha that entmax does not take makes its row NaN") {
  SKIP_WITHOUT_GPU();
  OnDevice device(Dtype::f32, {1.0, kNan, kInfinity, 0.5, 1.5}, 5, 3);
  const Rows p = device.forward({1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3});
  for (int i = 0; i < 12; ++i) CHECK(std::isnan(p.values[i]));
  CHECK(p.values[14] == doctest::Approx(0.8307).epsilon(1e-3));
}

TEST_CASE("entmax of rows: extents that do not fit are refused") {
  SKIP_WITHOUT_GPU();
  CHECK_THROWS_WITH_AS(entmax::entmax_rows(Dtype::f32, nullptr, nullptr, 2, 3, 4, nullptr, nullptr),
                       "alpha has 2 entries; allowed: 1, or 3 (one a row)", InvalidArgument);
  CHECK_THROWS_AS(entmax::entmax_rows(Dtype::f32, nullptr, nullptr, 1, -1, 4, nullptr, nullptr),
                  InvalidArgument);
}
