// The kernels for entmax of rows, and for the order of heads, run thread by thread on the CPU (simt/simt.h),
// without a GPU.

#include <random>

#include "gpu/tests/entmax_rows_case.h"
#include "gpu/tests/ladder_cases.h"
#include "gpu/tests/simt_elements.h"

// One instance for all threads of a block, which are fibers of one thread.
#undef __shared__
#define __shared__ thread_local

#include "gpu/entmax/arguments/head_order_kernel.cuh"
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

TEST_CASE("heads in a model's order on the CPU: copied, times factors, and summed") {
  constexpr int kBatch = 2, kHeads = 3, kRows = 300, kDim = 40, kRowOfModel = kHeads * kDim + 8;
  using T = __nv_bfloat16;
  std::mt19937_64 random(test_seed());
  std::normal_distribution<double> normal;
  const auto drawn = [&](size_t count) {
    std::vector<double> values(count);
    for (double& value : values) value = normal(random);
    return elements_of<T>(values);
  };
  const std::vector<T> model = drawn(size_t{kBatch} * kRows * kRowOfModel),
                       beside = drawn(size_t{kBatch} * kHeads * kRows * kDim);
  const std::vector<float> factors{0.5f, 2.5f, 0.3f};
  const int parts = static_cast<int>(entmax::sums_per_head(kRows, kDim));
  std::vector<T> copied(beside.size(), static_cast<T>(NAN)), scaled = copied;
  std::vector<float> sums(size_t{kHeads} * kBatch * parts, NAN);
  const auto in_order = [](auto* data) {
    return entmax::HeadRows<std::remove_pointer_t<decltype(data)>>{data, int64_t{kHeads} * kRows * kDim,
                                                                   int64_t{kRows} * kDim, kDim};
  };
  entmax::HeadOrder order{.from = {model.data(), int64_t{kRows} * kRowOfModel, kDim, kRowOfModel},
                          .to = in_order(static_cast<void*>(copied.data())),
                          .batch = kBatch,
                          .heads = kHeads,
                          .rows = kRows,
                          .head_dim = kDim};
  const auto run = [&] {
    simt::run({static_cast<unsigned>(parts), kBatch * kHeads}, entmax::kOrderThreads, test_seed(),
              [&] { entmax::reorder_kernel<T>(order); });
  };
  run();
  order.to.data = scaled.data();
  order.factors = factors.data();
  order.factor_count = kHeads;
  order.beside = in_order(static_cast<const void*>(beside.data()));
  order.sums = sums.data();
  run();
  for (int head = 0; head < kHeads; ++head) {
    double expected = 0, found = 0;
    for (int entry = 0; entry < kBatch; ++entry) {
      for (int i = 0; i < kRows * kDim; ++i) {
        const auto to = static_cast<size_t>((entry * kHeads + head) * kRows * kDim + i);
        const float x = static_cast<float>(
            model[static_cast<size_t>((entry * kRows + i / kDim) * kRowOfModel + head * kDim + i % kDim)]);
        REQUIRE(static_cast<float>(copied[to]) == x);
        REQUIRE(static_cast<float>(scaled[to]) ==
                static_cast<float>(static_cast<T>(x * factors[static_cast<size_t>(head)])));
        expected += double{x} * static_cast<float>(beside[to]);
      }
    }
    for (int i = 0; i < kBatch * parts; ++i) found += sums[static_cast<size_t>(head * kBatch * parts + i)];
    CHECK(found == doctest::Approx(expected).epsilon(1e-4));
  }
}
