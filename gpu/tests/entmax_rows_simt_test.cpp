// The kernels for entmax of rows, run thread by thread on the CPU (simt/simt.h), without a GPU.

#include "gpu/tests/entmax_rows_case.h"
#include "gpu/tests/ladder_cases.h"
#include "gpu/tests/simt_elements.h"

// One instance for all threads of a block, which are fibers of one thread.
#undef __shared__
#define __shared__ thread_local

#include "gpu/entmax/rows/rows.cu"

using namespace splash;
using namespace splash::gpu;
using namespace splash::gpu::testing;

namespace {

class OnCpu {
 public:
  OnCpu(Dtype dtype, const std::vector<double>& alpha, int64_t rows, int64_t n)
      : dtype_(dtype), alpha_(alpha), alphas_(static_cast<int64_t>(alpha.size())), rows_(rows), n_(n) {}

  Rows forward(const std::vector<double>& scores) const {
    Rows result;
    entmax::visit(dtype_, [&](auto element) {
      using T = decltype(element);
      const std::vector<T> x = elements_of<T>(scores);
      std::vector<T> p(x.size(), static_cast<T>(NAN));
      entmax::entmax_rows(dtype_, x.data(), alpha_.data(), alphas_, rows_, n_, p.data(), nullptr);
      result.values = values_of(p);
    });
    return result;
  }

  Rows gradient(const std::vector<double>& p, const std::vector<double>& d_p) const {
    Rows result{{}, std::vector<double>(static_cast<size_t>(rows_), NAN)};
    entmax::visit(dtype_, [&](auto element) {
      using T = decltype(element);
      const std::vector<T> of_p = elements_of<T>(p), of_d_p = elements_of<T>(d_p);
      std::vector<T> ds(of_p.size(), static_cast<T>(NAN));
      entmax::entmax_rows_gradient(dtype_, of_p.data(), of_d_p.data(), alpha_.data(), alphas_, rows_, n_,
                                   ds.data(), result.d_alpha.data(), nullptr);
      result.values = values_of(ds);
    });
    return result;
  }

 private:
  Dtype dtype_;
  std::vector<double> alpha_;
  int64_t alphas_, rows_, n_;
};

}  // namespace

TEST_CASE("entmax of rows on the CPU: values and gradients are the reference's") {
  check_values_and_gradients<OnCpu>(test_seed());
}

TEST_CASE("entmax of rows on the CPU: an alpha that entmax does not take makes its row NaN") {
  check_refused_alphas<OnCpu>();
}

TEST_CASE("entmax of rows on the CPU: p, its sum, the support and gradients at every alpha") {
  for (const int64_t n : {1, 3, 200}) check_scan<OnCpu>({kScanAlphas, kPatterns, n, Dtype::f32}, Dtype::f32);
  check_scan<OnCpu>({kScanAlphas, kPatterns, 60, Dtype::f64}, Dtype::f64);
  // More values than a thread holds in four registers, and more than it holds in registers at all.
  constexpr double kAlphas[] = {1.5, 2, 3};
  constexpr Pattern kHard[] = {Pattern::near_equal, Pattern::far_above};
  check_scan<OnCpu>({kAlphas, kHard, 2000, Dtype::f32}, Dtype::f32);
  check_scan<OnCpu>({kAlphas, kHard, 9000, Dtype::f32}, Dtype::f32);
}
