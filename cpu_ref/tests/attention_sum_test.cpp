// sum p = 1 in attention: values of 1 give 1 for any alpha, length and pattern of scores. Also gradients
// there.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "core/normalizer.h"
#include "cpu_ref/attention/naive.h"
#include "cpu_ref/attention/screened.h"
#include "cpu_ref/tests/attention_test_support.h"
#include "cpu_ref/tests/entmax_oracle.h"

using namespace splash;
using namespace splash::cpu_ref;
using namespace splash::cpu_ref::test;

namespace {

const std::vector<double> kAlphas{kLeastAlpha, 1.001, 1.1, 1.5, 2, 3, 10, kMostAlpha};
constexpr int64_t kDim = 4;
template <class T>
constexpr double kBound = std::is_same_v<T, float> ? 1e-6 : 1e-12;

// One query whose score with key j is exactly scores[j]. The first element of every value is 1, the others
// are random.
template <class T>
AttentionInputs<T> inputs_of(const std::vector<T>& scores) {
  const auto n = static_cast<int64_t>(scores.size());
  AttentionInputs<T> in = random_inputs<T>({1, 1, 1, 1, n, kDim}, 3);
  in.q.matrix(0, 0).setZero();
  in.q.row(0, 0, 0)[0] = 1;
  for (int64_t j = 0; j < n; ++j) {
    in.k.row(0, 0, j)[0] = scores[j];
    in.v.row(0, 0, j)[0] = 1;
  }
  return in;
}

AttentionSpec spec_of(int64_t n, double alpha) {
  return {{1, 1, 1, 1, n, kDim}, 1, {NormalizerKind::entmax, {alpha}}, {}, {}};
}

// Rows that both implementations take: finite scores, for which screened_forward rounds z = (alpha - 1) s to
// float.
template <class T, class Values>
void check(const std::vector<T>& z, double factor, double alpha, const Tensor<T>& out,
           const AttentionInputs<T>& in, const Values& p, double bound) {
  CHECK(std::abs(out.data()[0] - 1) <= bound);
  const testing::Oracle oracle(z, factor, alpha);
  std::vector<long double> expected(kDim, 0);
  long double worst = 0;
  for (size_t j = 0; j < z.size(); ++j) {
    const long double share = oracle(z[j]);
    worst = std::max(worst, std::abs(p[j] - share));
    for (int64_t d = 0; d < kDim; ++d) expected[d] += share * in.v.data()[j * kDim + d];
  }
  CHECK(static_cast<double>(worst) <= bound);
  for (int64_t d = 0; d < kDim; ++d)
    CHECK(std::abs(static_cast<double>(out.data()[d] - expected[d])) <= 4 * bound);
}

template <class T>
std::vector<T> dense(const SparseProbabilities<T>& sparse, size_t n) {
  std::vector<T> p(n);
  for (size_t e = 0; e < sparse.columns.size(); ++e) p[sparse.columns[e]] = sparse.values[e];
  return p;
}

// Calls use(scores, alpha) for every pattern and alpha.
template <class T, class Use>
void for_each_row(const std::vector<int64_t>& lengths, const Use& use) {
  for (const int64_t n : lengths)
    for (const std::string& pattern : testing::kPatterns)
      for (const double alpha : kAlphas) {
        CAPTURE(pattern);
        CAPTURE(n);
        CAPTURE(alpha);
        use(testing::hard_row<T>(pattern, n), alpha);
      }
}

}  // namespace

TEST_CASE_TEMPLATE("the plain reference: values of 1 give 1", T, float, double) {
  for_each_row<T>({1, 3, 500}, [](const std::vector<T>& scores, double alpha) {
    const auto in = inputs_of(scores);
    const Solver solver = alpha <= 2 ? Solver::newton : Solver::bisection;
    const auto result =
        forward(spec_of(scores.size(), alpha), in, {.solver = solver, .keep_probabilities = true});
    check(scores, alpha - 1, alpha, result.out, in, dense(*result.probabilities, scores.size()), kBound<T>);
  });
}

TEST_CASE("screened attention: values of 1 give 1") {
  for_each_row<float>({1, 3, 500}, [](const std::vector<float>& scores, double alpha) {
    const auto in = inputs_of(scores);
    const auto result = screened_forward(spec_of(scores.size(), alpha), in.q, in.k, in.v, true);
    std::vector<float> z = scores;
    const float largest = *std::ranges::max_element(scores, {}, [](float s) { return std::abs(s); });
    const bool plain = std::abs(largest) > 1e30F;  // the plain reference runs then, on the scores themselves
    if (!plain)
      for (float& value : z) value *= static_cast<float>(alpha - 1);
    check(z, plain ? alpha - 1 : 1, alpha, result.out, in, dense(result.probabilities, scores.size()),
          kBound<float>);
  });
}

TEST_CASE("the oracle's own oracle: values of 1 give 1") {
  for_each_row<double>({1, 3, 300}, [](const std::vector<double>& scores, double alpha) {
    const auto in = inputs_of(scores);
    const auto result = naive_forward(spec_of(scores.size(), alpha), in);
    const double* const p = result.probabilities.data();
    check(scores, alpha - 1, alpha, result.out, in, std::vector<double>(p, p + scores.size()), 1e-9);
  });
}

TEST_CASE("broad rows keep their digits: 200,000 near-equal keys, forward and backward") {
  const int64_t n = 200'000;
  const auto scores = testing::hard_row<float>("nearest", n);
  const auto in = inputs_of(scores);
  Tensor<float> dout(1, 1, 1, kDim);
  std::fill_n(dout.data(), kDim, 1.0F);
  for (const double alpha : {1.001, 1.5, 2.0}) {
    CAPTURE(alpha);
    const AttentionSpec spec = spec_of(n, alpha);
    const auto fast = screened_forward(spec, in.q, in.k, in.v, true);
    const auto plain = forward(spec, in, {.solver = Solver::newton});
    CHECK(std::abs(fast.out.data()[0] - 1) <= 1e-6);
    CHECK(std::abs(plain.out.data()[0] - 1) <= 1e-6);
    const auto fast_gradients = screened_backward(spec, fast, in.q, in.k, in.v, dout);
    const auto exact = backward(spec, in.cast<double>(), dout.cast<double>(), {.solver = Solver::newton});
    CHECK(max_error(backward(spec, in, dout, {.solver = Solver::newton}).dq, exact.dq) < 1e-5);
    CHECK(max_error(fast_gradients.dq, exact.dq) < 1e-5);
    CHECK(max_error(fast_gradients.dv, exact.dv) < 1e-6);
  }
}

TEST_CASE("a key that 100,000 queries share gets the sum of what they say") {
  // Equal queries and two keys: dV_0 is 100,000 times p_0 dO.
  const AttentionShape shape{1, 1, 1, 100'000, 2, kDim};
  const AttentionSpec spec{shape, 1, {}, {}, {}};
  AttentionInputs<float> in = random_inputs<float>(shape, 5);
  in.q.matrix(0, 0).setConstant(0.1F);
  Tensor<float> dout(1, 1, shape.q_len, kDim);
  std::fill_n(dout.data(), dout.size(), 0.3F);
  const auto forward_result = screened_forward(spec, in.q, in.k, in.v, true);
  const double expected = 1e5 * forward_result.probabilities.values[0] * 0.3F;
  const auto fast = screened_backward(spec, forward_result, in.q, in.k, in.v, dout);
  const auto plain = backward(spec, in, dout, {.solver = Solver::newton});
  CHECK(fast.dv.data()[0] == doctest::Approx(expected).epsilon(1e-6));
  CHECK(plain.dv.data()[0] == doctest::Approx(expected).epsilon(1e-6));
}
