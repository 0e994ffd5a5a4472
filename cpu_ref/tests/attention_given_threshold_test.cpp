// Given thresholds: the plain path against the definition written out, its gradients against central
// differences, the screened path against the plain one. Also a k_keep per head.
#include <algorithm>
#include <cmath>
#include <numeric>

#include <doctest/doctest.h>

#include "core/error.h"
#include "core/workload.h"
#include "cpu_ref/attention/screened.h"
#include "cpu_ref/tests/attention_differences.h"
#include "cpu_ref/tests/attention_test_support.h"

using namespace splash;
using namespace splash::cpu_ref;
using namespace splash::cpu_ref::test;

namespace {

const AttentionShape kGivenShape{2, 4, 2, 6, 13, 3};

struct GivenProblem {
  AttentionSpec spec;
  AttentionInputs<double> inputs = random_inputs<double>(kGivenShape, 41);
  Tensor<double> dout = random_dout<double>(kGivenShape, 41);
  std::vector<double> offsets;  // [rows], from -1 to 0, exact in float

  explicit GivenProblem(std::vector<double> alpha, const Selection& selection = {}, const Mask& mask = {})
      : spec{kGivenShape, 1.2, {NormalizerKind::entmax, std::move(alpha)}, selection, mask} {
    for (int64_t r = 0; r < kGivenShape.rows(); ++r)
      offsets.push_back(static_cast<float>(-std::exp(-std::abs(CounterRandom(42).normal(r)))));
  }
};

// What is held fixed: the kept keys, the largest score among them (-inf if there are none), and the offset.
struct FixedRow {
  std::vector<int64_t> keys;
  double largest = -INFINITY, offset = 0;
};

std::vector<FixedRow> fixed_rows(const GivenProblem& p) {
  std::vector<FixedRow> rows(kGivenShape.rows());
  for (int64_t r = 0; r < kGivenShape.rows(); ++r) {
    const int64_t b = r / kGivenShape.q_len / kGivenShape.q_heads,
                  h = r / kGivenShape.q_len % kGivenShape.q_heads, i = r % kGivenShape.q_len;
    const RowMask mask = p.spec.mask.row(kGivenShape, b, h, i);
    const auto keys = p.inputs.k.matrix(b, kGivenShape.kv_head_of(h));
    std::vector<std::pair<double, int64_t>> scores;
    for (int64_t j = 0; j < kGivenShape.kv_len; ++j) {
      if (mask.visible(j))
        scores.emplace_back(-p.spec.scale * p.inputs.q.matrix(b, h).row(i).dot(keys.row(j)), j);
    }
    std::ranges::sort(scores);
    if (p.spec.selection.kind == SelectionKind::top_k_row)
      scores.resize(std::min<size_t>(scores.size(), p.spec.selection.k_keep_of(h)));
    for (const auto& [score, key] : scores) rows[r].keys.push_back(key);
    if (!scores.empty()) rows[r].largest = -scores.front().first;
    const double end = -std::pow(static_cast<double>(kGivenShape.kv_len), 1 - p.spec.normalizer.alpha_of(h));
    rows[r].offset = std::clamp(p.offsets[r], -1.0, end);
  }
  return rows;
}

// The definition written out, for the rows' fixed keys and largest scores.
struct Written {
  Tensor<double> out{kGivenShape.batch, kGivenShape.q_heads, kGivenShape.q_len, kGivenShape.head_dim};
  LossValue value;
};
Written written_out(const GivenProblem& p, const std::vector<FixedRow>& rows) {
  Written result;
  for (int64_t r = 0; r < kGivenShape.rows(); ++r) {
    const int64_t b = r / kGivenShape.q_len / kGivenShape.q_heads,
                  h = r / kGivenShape.q_len % kGivenShape.q_heads, i = r % kGivenShape.q_len;
    const double alpha = p.spec.normalizer.alpha_of(h);
    const double tau_hat = (alpha - 1) * rows[r].largest + rows[r].offset;
    const auto keys = p.inputs.k.matrix(b, kGivenShape.kv_head_of(h)),
               values = p.inputs.v.matrix(b, kGivenShape.kv_head_of(h));
    double total = 0;
    Eigen::RowVectorXd out = Eigen::RowVectorXd::Zero(kGivenShape.head_dim);
    for (const int64_t j : rows[r].keys) {
      const double u = (alpha - 1) * p.spec.scale * p.inputs.q.matrix(b, h).row(i).dot(keys.row(j)) - tau_hat;
      if (!(u > 0)) continue;
      const double w = std::pow(u, 1 / (alpha - 1));
      total += w;
      out += w * values.row(j);
      result.value.support.push_back(static_cast<int32_t>(r * kGivenShape.kv_len + j));
    }
    if (total > 0) result.out.matrix(b, h).row(i) = out / total;
    result.value.loss += result.out.matrix(b, h).row(i).dot(p.dout.matrix(b, h).row(i));
  }
  return result;
}

std::vector<Selection> given_selections() {
  return {{},
          {.kind = SelectionKind::top_k_row, .k_keep = 3},
          {.kind = SelectionKind::top_k_row, .head_k_keep = {1, 0, 4, 13}}};
}

std::vector<float> as_float(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

}  // namespace

TEST_CASE(
    "given thresholds: the definition, and gradients as central differences of what is not held fixed") {
  for (const NamedMask& mask : masks_for(kGivenShape)) {
    for (const Selection& selection : given_selections()) {
      for (const std::vector<double>& alpha :
           {std::vector{1.02}, {1.2}, {1.5}, {2.0}, {2.5}, {1.3, 1.5, 1.7, 2.0}}) {
        GivenProblem p(alpha, selection, mask.mask);
        INFO(describe(p.spec, mask.name));
        const auto rows = fixed_rows(p);
        const auto result = forward(p.spec, p.inputs, {.tau_offsets = p.offsets});
        CHECK(max_error(result.out, written_out(p, rows).out) < 1e-11);

        p.spec.normalizer.alpha.resize(kGivenShape.q_heads, alpha.front());
        const auto gradients = backward(p.spec, p.inputs, p.dout, {.tau_offsets = p.offsets});
        const auto loss = [&] { return written_out(p, rows).value; };
        DifferenceReport report;
        const auto check = [&](double* values, const auto& gradient) {
          const auto size = static_cast<int64_t>(gradient.size());
          report.merge(check_differences(values, gradient.data(), size, 20, 44, loss));
        };
        check(p.inputs.q.data(), gradients.dq);
        check(p.inputs.k.data(), gradients.dk);
        check(p.inputs.v.data(), gradients.dv);
        if (alpha.front() <= 2) check(p.spec.normalizer.alpha.data(), gradients.dalpha);
        CHECK(report.worst < 2e-5);
        CHECK(report.mostly_checked());
      }
    }
  }
}

TEST_CASE("given thresholds at tau itself give entmax and its support") {
  for (const double alpha : {1.2, 1.5, 2.0}) {
    GivenProblem p({alpha});
    const auto exact = forward(p.spec, p.inputs, {.keep_probabilities = true});
    for (int64_t r = 0; r < kGivenShape.rows(); ++r) {
      const auto& e = *exact.probabilities;
      double largest = 0;
      for (int64_t n = e.row_offsets[r]; n < e.row_offsets[r + 1]; ++n)
        largest = std::max(largest, e.values[n]);
      p.offsets[r] = -std::pow(largest, alpha - 1);
    }
    const auto given = forward(p.spec, p.inputs, {.tau_offsets = p.offsets});
    CHECK(max_error(given.out, exact.out) < 1e-11);
    for (int64_t r = 0; r < kGivenShape.rows(); ++r)
      CHECK(given.tau[r] == doctest::Approx(exact.tau[r]).epsilon(1e-11));
  }
}

TEST_CASE("given thresholds: the screened path equals the plain one in double, and so do its gradients") {
  const AttentionShape shape{1, 4, 2, 61, 700, 24};
  for (const double alpha : {1.05, 1.5, 2.0, 3.0}) {
    for (const int k_keep : {0, 5, 300}) {
      for (const bool causal : {false, true}) {
        AttentionSpec spec{.shape = shape, .normalizer = {NormalizerKind::entmax, {alpha}}};
        if (k_keep > 0) spec.selection = {.kind = SelectionKind::top_k_row, .k_keep = k_keep};
        if (k_keep == 300) spec.selection.head_k_keep = {0, 1, 40, 300};
        spec.mask.causal = causal;
        INFO(describe(spec), ", k_keep ", k_keep);
        const auto in = make_inputs<float>({.seed = 45, .query_variance = k_keep == 5 ? 0.05 : 4}, shape);
        const auto exact_in = in.cast<double>();
        const auto dout = random_dout<float>(shape, 46);
        std::vector<float> offsets(shape.rows());
        for (int64_t r = 0; r < shape.rows(); ++r)
          offsets[r] = -std::exp(-std::abs(static_cast<float>(CounterRandom(47).normal(r))));
        const std::vector<double> exact_offsets(offsets.begin(), offsets.end());
        const auto fast = screened_forward(spec, in.q, in.k, in.v, true, {}, offsets);
        const auto exact = forward(spec, exact_in, {.tau_offsets = exact_offsets});
        CHECK(max_error(fast.out, exact.out) < 2e-4);
        int64_t misplaced = 0;
        for (int64_t r = 0; r < shape.rows(); ++r) {
          CHECK(fast.tau[r] == doctest::Approx(exact.tau[r]).epsilon(1e-5));
          misplaced += std::abs(fast.support[r] - exact.support[r]);
        }
        if (alpha > 1.1) CHECK(misplaced <= shape.rows() / 50);  // nearer to 1 float's least number is no 0
        if (alpha > 1.5) continue;  // the gradient jumps where a key enters the support
        const auto of_fast = screened_backward(spec, fast, in.q, in.k, in.v, dout, offsets);
        const auto of_exact = backward(spec, exact_in, dout.cast<double>(), {.tau_offsets = exact_offsets});
        CHECK(max_error(of_fast.dq, of_exact.dq) < 2e-3);
        CHECK(max_error(of_fast.dk, of_exact.dk) < 2e-3);
        CHECK(max_error(of_fast.dv, of_exact.dv) < 2e-3);
        for (int64_t h = 0; h < shape.q_heads; ++h)
          CHECK(of_fast.dalpha[h] == doctest::Approx(of_exact.dalpha[h]).epsilon(2e-3).scale(1));
      }
    }
  }
}

TEST_CASE(
    "given thresholds of nasty rows: NaN, ties, one key, none, huge scores, offsets out of the bracket") {
  AttentionSpec spec{.shape = {1, 1, 1, 6, 8, 2}, .scale = 1};
  AttentionInputs<float> in = random_inputs<float>(spec.shape, 48);
  for (int64_t j = 0; j < 8; ++j) in.k.row(0, 0, j)[0] = 1;  // so that query element 0 shifts a row's scores
  std::copy_n(in.k.row(0, 0, 2), 2, in.k.row(0, 0, 5));      // a tie
  in.q.row(0, 0, 3)[0] = 1e6F;
  spec.mask.q_positions = {7, 7, 0, 7, -1, 7};
  spec.mask.k_positions = {0, 1, 2, 3, 4, 5, 6, 7};
  std::vector<float> offsets{-0.5F, NAN, -0.3F, -0.4F, -0.5F, 0.25F};
  const std::vector<double> exact_offsets(offsets.begin(), offsets.end());
  const auto exact_in = in.cast<double>();
  const auto plain = forward(spec, exact_in, {.tau_offsets = exact_offsets});
  const auto dout = random_dout<float>(spec.shape, 49);
  const auto gradients = backward(spec, exact_in, dout.cast<double>(), {.tau_offsets = exact_offsets});
  const auto all_nan = [](const auto& row) { return row.array().isNaN().all(); };
  for (const bool with_nan : {true, false}) {
    if (!with_nan) offsets[1] = -1;  // then the screened path takes all rows
    const auto fast = screened_forward(spec, in.q, in.k, in.v, true, {}, offsets);
    CHECK(all_nan(fast.out.matrix(0, 0).row(1)) == with_nan);
    CHECK(std::isnan(fast.tau[1]) == with_nan);
    CHECK(fast.out.matrix(0, 0).row(4).isZero(0));
    CHECK(fast.tau[4] == INFINITY);
    CHECK(fast.support[2] == 1);
    CHECK((fast.out.matrix(0, 0).row(2) - in.v.matrix(0, 0).row(0)).isZero(0));
    for (const int row : {0, 2, 5})
      CHECK((fast.out.matrix(0, 0).row(row).cast<double>() - plain.out.matrix(0, 0).row(row)).norm() < 1e-5);
  }
  CHECK(all_nan(plain.out.matrix(0, 0).row(1)));
  CHECK(all_nan(gradients.dq.matrix(0, 0).row(1)));
  CHECK(gradients.dq.matrix(0, 0).row(0).allFinite());
  CHECK(gradients.dq.matrix(0, 0).row(2).isZero(0));  // one key
  CHECK(plain.support[5] >= 1);                       // an offset above 0 is held at the bracket's upper end
}

TEST_CASE("a k_keep a head is that k_keep for each head apart") {
  const AttentionShape shape{1, 4, 2, 40, 300, 16};
  const auto in = make_inputs<float>({.seed = 50, .query_variance = 0.1}, shape);
  const auto dout = random_dout<float>(shape, 51);
  AttentionSpec spec{.shape = shape};
  spec.selection = {.kind = SelectionKind::top_k_row, .head_k_keep = {2, 0, 7, 150}};
  const auto of_heads = screened_forward(spec, in.q, in.k, in.v, true);
  const auto gradients = screened_backward(spec, of_heads, in.q, in.k, in.v, dout);
  const auto exact = forward(spec, in.cast<double>());
  CHECK(max_error(of_heads.out, exact.out) < 1e-5);
  for (int64_t h = 0; h < shape.q_heads; ++h) {
    AttentionSpec alone = spec;
    const int64_t k_keep = spec.selection.head_k_keep[h];
    alone.selection =
        k_keep > 0 ? Selection{.kind = SelectionKind::top_k_row, .k_keep = k_keep} : Selection{};
    const auto result = screened_forward(alone, in.q, in.k, in.v, true);
    CHECK((result.out.matrix(0, h) - of_heads.out.matrix(0, h)).isZero(0));
    const auto of_alone = screened_backward(alone, result, in.q, in.k, in.v, dout);
    CHECK((of_alone.dq.matrix(0, h) - gradients.dq.matrix(0, h)).isZero(0));
  }
}

TEST_CASE("given thresholds and a k_keep a head: what is refused") {
  GivenProblem p({1.5});
  const auto run = [&] { return forward(p.spec, p.inputs, {.tau_offsets = p.offsets}); };
  p.offsets.pop_back();
  CHECK_THROWS_WITH_AS(run(), doctest::Contains("47 offsets of thresholds; allowed: none, or one a row, 48"),
                       InvalidArgument);
  p = GivenProblem({1.5}, {.kind = SelectionKind::top_k_block});
  CHECK_THROWS_AS(run(), Unsupported);
  p = GivenProblem({1.5});
  p.spec.normalizer.kind = NormalizerKind::softmax;
  CHECK_THROWS_AS(run(), Unsupported);
  p = GivenProblem({1.5});
  const auto in = random_inputs<float>(kGivenShape, 1);
  const auto offsets = as_float(p.offsets);
  CHECK_THROWS_AS(screened_forward(p.spec, in.q, in.k, in.v, false, offsets, offsets), InvalidArgument);
  p.spec.selection = {.kind = SelectionKind::top_k_row, .head_k_keep = {1, 2}};
  CHECK_THROWS_WITH_AS(run(), doctest::Contains("k_keep has 2 entries; allowed: 1, or 4"), InvalidArgument);
  p.spec.selection.head_k_keep = {1, 2, -1, 0};
  CHECK_THROWS_WITH_AS(run(), doctest::Contains("k_keep of a head is -1"), InvalidArgument);
  p.spec.selection = {.kind = SelectionKind::top_k_block, .head_k_keep = {1, 2, 3, 4}};
  CHECK_THROWS_AS(run(), InvalidArgument);
}
