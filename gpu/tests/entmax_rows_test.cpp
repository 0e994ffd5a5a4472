// Entmax of a matrix's rows in device memory, against the CPU's double result for the same rounded scores.

#include <algorithm>
#include <vector>

#include <doctest/doctest.h>

#include "core/error.h"
#include "gpu/engine/tensor.h"
#include "gpu/entmax/rows/rows.h"
#include "gpu/tests/entmax_rows_case.h"
#include "gpu/tests/ladder_cases.h"
#include "gpu/tests/skip_without_gpu.h"

using namespace splash;
using namespace splash::gpu;
using namespace splash::gpu::testing;

namespace {

Tensor<double> matrix(const std::vector<double>& values, int64_t rows) {
  Tensor<double> result(1, 1, rows, static_cast<int64_t>(values.size()) / rows);
  std::ranges::copy(values, result.data());
  return result;
}

// Runs the kernels on a device, over poison.
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

}  // namespace

TEST_CASE("entmax of rows: values and gradients are the CPU's") {
  SKIP_WITHOUT_GPU();
  check_values_and_gradients<OnDevice>(test_seed());
}

TEST_CASE("entmax of rows: an alpha that entmax does not take makes its row NaN") {
  SKIP_WITHOUT_GPU();
  check_refused_alphas<OnDevice>();
}

TEST_CASE("entmax of rows: p, its sum, the support and gradients at every alpha") {
  SKIP_WITHOUT_GPU();
  constexpr double kAlphas[] = {kLeastAlpha, 1.05, 1.2, 1.5, 2, 3, kMostAlpha};
  constexpr Pattern kHard[] = {Pattern::equal, Pattern::near_equal, Pattern::far_above, Pattern::spread};
  for (const Dtype dtype : {Dtype::f32, Dtype::f64}) {
    for (const int64_t n : {1, 2, 3, 17, 300, 1000, 8192, 20000})
      check_scan<OnDevice>({kScanAlphas, kPatterns, n, dtype}, dtype);
    for (const int64_t n : {200000, 1000000}) check_scan<OnDevice>({kAlphas, kHard, n, dtype}, dtype);
  }
}

TEST_CASE("entmax of rows: extents that do not fit are refused") {
  SKIP_WITHOUT_GPU();
  CHECK_THROWS_WITH_AS(entmax::entmax_rows(Dtype::f32, nullptr, nullptr, 2, 3, 4, nullptr, nullptr),
                       "alpha has 2 entries; allowed: 1, or 3 (one a row)", InvalidArgument);
  CHECK_THROWS_AS(entmax::entmax_rows(Dtype::f32, nullptr, nullptr, 1, -1, 4, nullptr, nullptr),
                  InvalidArgument);
}
