#include <doctest/doctest.h>

#include "cpu_ref/attention/forward.h"
#include "cpu_ref/attention/naive.h"
#include "cpu_ref/tests/attention_test_support.h"

using namespace splash;
using namespace splash::cpu_ref;
using namespace splash::cpu_ref::test;

namespace {

std::vector<AttentionShape> shapes() {
  return {{2, 4, 2, 7, 13, 5},
          {1, 3, 1, 13, 7, 4},
          {1, 2, 2, 1, 65, 3},
          {2, 1, 1, 65, 1, 1},
          {1, 2, 1, 9, 70, 8}};
}

// Keys with a clear probability by the naive oracle must be in the support; no other key may have more than
// rounding.
template <class T>
void compare_with_naive(const AttentionSpec& spec, const AttentionInputs<T>& inputs, double tolerance) {
  const NaiveForward expected = naive_forward(spec, inputs.template cast<double>());
  const ForwardResult<T> result = forward(spec, inputs, {.keep_probabilities = true});
  CHECK(max_error(result.out, expected.out) < tolerance);
  CHECK(max_error(dense_probabilities(spec.shape, result), expected.probabilities) < tolerance);
}

// Every combination of normalizer, selection and mask on one shape.
template <class T>
void compare_everything(const AttentionShape& shape, double step, double tolerance, bool modified = false) {
  const auto inputs = random_inputs<T>(shape, 7, step);
  for (const NamedMask& mask : masks_for(shape)) {
    for (const Normalizer& normalizer : all_normalizers()) {
      for (const Selection& selection : all_selections(shape)) {
        AttentionSpec spec{shape, step > 0 ? 0.25 : 0.9, normalizer, selection, mask.mask};
        if (modified) modify(spec);
        INFO(describe(spec, mask.name));
        compare_with_naive(spec, inputs, tolerance);
      }
    }
  }
}

}  // namespace

TEST_CASE("forward agrees with the naive oracle: double, normal inputs") {
  for (const AttentionShape& shape : shapes()) compare_everything<double>(shape, 0, 1e-9);
}

TEST_CASE("forward agrees with the naive oracle: double, inputs with equal scores") {
  for (const AttentionShape& shape : shapes()) compare_everything<double>(shape, 0.25, 1e-9);
}

TEST_CASE("forward agrees with the naive oracle: float") {
  for (const AttentionShape& shape : shapes()) compare_everything<float>(shape, 0.25, 2e-4);
}

TEST_CASE("forward agrees with the naive oracle: capped scores, sinks, dropout and a bias") {
  compare_everything<double>(shapes().front(), 0, 1e-9, true);
  compare_everything<double>({1, 4, 2, 9, 30, 8}, 0, 1e-9, true);
  compare_everything<float>({1, 4, 2, 9, 30, 8}, 0.25, 2e-4, true);
}

TEST_CASE("dropout: its rate, and the mean over seeds is the output without it") {
  const AttentionShape shape{1, 2, 1, 6, 40, 3};
  const auto inputs = random_inputs<double>(shape, 19);
  AttentionSpec spec{shape, 0.5, {NormalizerKind::entmax, {1.5}}, {}, {.causal = true}};
  const auto expected = forward(spec, inputs);
  spec.dropout.rate = 0.25;
  constexpr int kSeeds = 4000;
  Tensor<double> mean(shape.batch, shape.q_heads, shape.q_len, shape.head_dim);
  int64_t kept = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    spec.dropout.seed = seed;
    const auto result = forward(spec, inputs);
    CHECK(result.support == expected.support);
    CHECK(result.tau == expected.tau);
    for (int64_t i = 0; i < mean.size(); ++i) mean.data()[i] += result.out.data()[i] / kSeeds;
    const DropoutRow row(spec.dropout, 3);
    for (int64_t key = 0; key < shape.kv_len; ++key) kept += row.keeps(key) ? 1 : 0;
  }
  CHECK(max_error(mean, expected.out) < 0.05);
  const double share = static_cast<double>(kept) / static_cast<double>(kSeeds * shape.kv_len);
  CHECK(share == doctest::Approx(0.75).epsilon(0.01));
}

TEST_CASE("a bias of distances is counted from the query's place and held at the table's ends") {
  const AttentionShape shape{1, 2, 1, 2, 4, 1};
  AttentionInputs<double> inputs = random_inputs<double>(shape, 3);
  std::fill_n(inputs.q.data(), inputs.q.size(), 0.0);  // the bias alone decides
  AttentionSpec spec{shape, 1, {NormalizerKind::softmax, {1.5}}, {}, {}};
  spec.bias = {.table = {1, 2, 3, 10, 20, 30}, .distances = 3, .first = -1};
  const auto p = dense_probabilities(shape, forward(spec, inputs, {.keep_probabilities = true}));
  // Query 0 has the place of key 2.
  const std::vector<double> scores[2] = {{1, 1, 2, 3}, {1, 1, 1, 2}};
  for (int64_t h = 0; h < 2; ++h) {
    for (int64_t i = 0; i < 2; ++i) {
      double sum = 0;
      for (const double score : scores[i]) sum += std::exp(h == 0 ? score : 10 * score);
      for (int64_t j = 0; j < 4; ++j) {
        const double score = h == 0 ? scores[i][j] : 10 * scores[i][j];
        CHECK(p.row(0, h, i)[j] == doctest::Approx(std::exp(score) / sum));
      }
    }
  }
}

TEST_CASE("biases that are not allowed are told") {
  const AttentionShape shape{1, 2, 1, 3, 3, 4};
  const auto inputs = random_inputs<double>(shape, 23);
  AttentionSpec spec{shape, 0.9, {}, {}, {}};
  spec.bias = {.table = {1, 2, 3}, .distances = 2, .first = 0};
  CHECK_THROWS_WITH_AS(forward(spec, inputs),
                       "bias has 3 entries; allowed: 2 heads times 2 distances, of which there is at least 1",
                       InvalidArgument);
  spec.bias.table = {1, 2, 3, INFINITY};
  CHECK_THROWS_WITH_AS(forward(spec, inputs), "a bias is inf; it must be finite", InvalidArgument);
  spec.bias = random_bias(shape, 1);
  spec.bias.first = int64_t{1} << 40;
  CHECK_THROWS_AS(forward(spec, inputs), InvalidArgument);
  spec.bias.first = 0;
  spec.mask = {.cu_seqlens_q = {0, 1, 3}, .cu_seqlens_k = {0, 1, 3}};
  CHECK_NOTHROW(forward(spec, inputs));
  spec.mask.cu_seqlens_k[1] = 2;
  CHECK_THROWS_WITH_AS(
      forward(spec, inputs),
      "a bias of distances takes packed sequences whose queries and keys have the same cu_seqlens",
      Unsupported);
}

TEST_CASE("a soft cap of a huge size changes nothing, and a score of infinity is its cap") {
  const AttentionShape shape{1, 1, 1, 3, 9, 4};
  auto inputs = random_inputs<double>(shape, 23);
  AttentionSpec spec{shape, 0.9, {NormalizerKind::entmax, {1.5}}, {}, {}};
  const auto plain = forward(spec, inputs);
  spec.softcap = 1e8;
  CHECK(max_error(forward(spec, inputs).out, plain.out) < 1e-9);
  spec.softcap = 2;
  inputs.k.row(0, 0, 4)[0] = std::numeric_limits<double>::infinity();
  const auto capped = forward(spec, inputs, {.keep_probabilities = true});
  for (int64_t i = 0; i < capped.out.size(); ++i) CHECK(std::isfinite(capped.out.data()[i]));
}

TEST_CASE(
    "a sink takes probability: all of it where it is far above the keys or there is no key, none far below") {
  const AttentionShape shape{1, 3, 1, 4, 3, 4};  // the first query sees no key
  const auto inputs = random_inputs<double>(shape, 29);
  AttentionSpec spec{shape, 0.9, {NormalizerKind::entmax, {1.5}}, {}, {.causal = true}};
  const auto without = forward(spec, inputs);
  spec.sinks = {-100, -INFINITY, 100};
  const auto with = forward(spec, inputs);
  for (int64_t row = 0; row < shape.rows(); ++row) {
    const int64_t h = row / shape.q_len;
    const double tau = without.tau[row];
    INFO(row);
    CHECK(with.support[row] == (h == 2 ? 0 : without.support[row]));
    if (h == 2) {
      CHECK(with.tau[row] == doctest::Approx(49));
    } else if (h == 0 && row == 0) {
      CHECK(with.tau[row] == doctest::Approx(-51));
    } else {
      CHECK(
          (with.tau[row] == tau || std::abs(with.tau[row] - tau) < 1e-12));  // a sum of one more rounds anew
    }
  }
}

TEST_CASE("soft caps, sinks and rates of dropout that are not allowed are told") {
  const AttentionShape shape{1, 1, 1, 3, 9, 4};
  const auto inputs = random_inputs<double>(shape, 23);
  AttentionSpec spec{shape, 0.9, {}, {}, {}};
  for (const double softcap : {-1.0, double{INFINITY}, std::nan("")}) {
    spec.softcap = softcap;
    CHECK_THROWS_WITH_AS(
        forward(spec, inputs),
        fmt::format("softcap is {}; it must be a finite number above 0, or 0 for none", softcap).c_str(),
        InvalidArgument);
  }
  spec.softcap = 0;
  spec.sinks = {1, 2};
  CHECK_THROWS_WITH_AS(forward(spec, inputs), "sinks has 2 entries; allowed: 1, one a query head",
                       InvalidArgument);
  spec.sinks = {NAN};
  CHECK_THROWS_WITH_AS(forward(spec, inputs), "a sink is nan; it must be a number, or -inf for none",
                       InvalidArgument);
  spec.sinks = {1};
  spec.normalizer.kind = NormalizerKind::softmax;
  CHECK_THROWS_WITH_AS(forward(spec, inputs), "sinks take the normalizer entmax, not softmax", Unsupported);
  spec.sinks.clear();
  for (const double rate : {-0.1, 1.0, std::nan("")}) {
    spec.dropout.rate = rate;
    CHECK_THROWS_WITH_AS(forward(spec, inputs),
                         fmt::format("dropout is {}; it must be at least 0 and below 1", rate).c_str(),
                         InvalidArgument);
  }
}

TEST_CASE("every solver gives the same attention") {
  const AttentionShape shape{1, 2, 1, 17, 40, 6};
  const auto inputs = random_inputs<double>(shape, 11);
  for (const double alpha : {1.2, 1.5, 2.0, 2.5}) {
    const AttentionSpec spec{shape, 2, {NormalizerKind::entmax, {alpha}}, {}, {.causal = true}};
    const auto expected = forward(spec, inputs);
    for (const Solver solver :
         {Solver::sorting, Solver::newton, Solver::halley_bisection, Solver::histogram}) {
      if (!supports_alpha(solver, alpha)) continue;
      INFO(describe(spec) << ", solver " << to_string(solver));
      CHECK(max_error(forward(spec, inputs, {.solver = solver}).out, expected.out) < 1e-9);
    }
  }
}

TEST_CASE("each head has its own alpha") {
  const AttentionShape shape{1, 2, 2, 5, 9, 4};
  const auto inputs = random_inputs<double>(shape, 3);
  const AttentionSpec both{shape, 1.5, {NormalizerKind::entmax, {1.3, 2.0}}, {}, {}};
  const auto result = forward(both, inputs);
  for (const int64_t h : {0, 1}) {
    AttentionSpec one = both;
    one.normalizer.alpha = {both.normalizer.alpha[h]};
    CHECK(result.out.matrix(0, h) == forward(one, inputs).out.matrix(0, h));
  }
}

TEST_CASE("tau satisfies its definition and belongs to entmax alone") {
  const AttentionShape shape{1, 2, 1, 9, 21, 4};
  const auto inputs = random_inputs<double>(shape, 5);
  for (const double alpha : {1.2, 1.5, 2.0, 2.5}) {
    AttentionSpec spec{shape, 1.5, {NormalizerKind::entmax, {alpha}}, {}, {}};
    const auto result = forward(spec, inputs);
    for (int64_t h = 0; h < 2; ++h) {
      const Eigen::ArrayXXd z =
          (alpha - 1) * 1.5 * (inputs.q.matrix(0, h) * inputs.k.matrix(0, 0).transpose()).array();
      for (int64_t i = 0; i < shape.q_len; ++i) {
        const double tau = result.tau[h * shape.q_len + i];
        CHECK((z.row(i) - tau).max(0).pow(1 / (alpha - 1)).sum() == doctest::Approx(1).epsilon(1e-10));
        CHECK(result.support[h * shape.q_len + i] == (z.row(i) > tau).count());
      }
    }
    spec.normalizer.kind = NormalizerKind::power;
    for (const double tau : forward(spec, inputs).tau) CHECK(std::isnan(tau));
  }
}

TEST_CASE("significant blocks: margin 0 changes no result, a large one leaves nothing") {
  const AttentionShape shape{1, 2, 2, 11, 37, 4};
  const auto inputs = random_inputs<double>(shape, 9);
  for (const Normalizer& normalizer : all_normalizers()) {
    AttentionSpec spec{shape, 1, normalizer, {}, {.causal = true}};
    INFO(describe(spec));
    const auto plain = forward(spec, inputs);
    spec.selection = {.kind = SelectionKind::significant_blocks, .block = 8, .margin = 0};
    const auto kept = forward(spec, inputs);
    CHECK(max_error(kept.out, plain.out) < 1e-12);
    CHECK(kept.support == plain.support);

    spec.selection.margin = 1e6;
    const auto dropped = forward(spec, inputs);
    if (normalizer.kind == NormalizerKind::softmax) {
      CHECK(same_bits(dropped.out, plain.out));  // softmax has no threshold
    } else {
      CHECK(dropped.out.matrix(0, 0).isZero(0));
      CHECK(std::ranges::all_of(dropped.support, [](int64_t n) { return n == 0; }));
    }
    if (normalizer.kind == NormalizerKind::entmax) {
      CHECK(std::ranges::all_of(dropped.tau, [](double tau) { return tau == INFINITY; }));
    }
  }
}
