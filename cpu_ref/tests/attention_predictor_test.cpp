#include <doctest/doctest.h>

#include "core/error.h"
#include "cpu_ref/attention/row.h"
#include "cpu_ref/attention/threshold_predictor.h"
#include "cpu_ref/tests/attention_differences.h"
#include "cpu_ref/tests/attention_test_support.h"

using namespace splash;
using namespace splash::cpu_ref;
using namespace splash::cpu_ref::test;

namespace {

const AttentionShape kPredictedShape{2, 4, 2, 5, 11, 3};

struct PredictorProblem {
  AttentionSpec spec;
  AttentionInputs<double> inputs = random_inputs<double>(kPredictedShape, 31);
  Tensor<double> dout = random_dout<double>(kPredictedShape, 31);
  ThresholdPredictor predictor{kPredictedShape.q_heads, kPredictedShape.head_dim};

  explicit PredictorProblem(std::vector<double> alpha, const Mask& mask = {})
      : spec{kPredictedShape, 1.2, {NormalizerKind::entmax, std::move(alpha)}, {}, mask} {
    for (size_t i = 0; i < predictor.w.size(); ++i) predictor.w[i] = 0.5 * CounterRandom(32).normal(i);
    for (size_t i = 0; i < predictor.b.size(); ++i) predictor.b[i] = CounterRandom(33).normal(i);
  }

  PredictedForward<double> forward(PredictorMode mode) const {
    return predicted_forward<double>(spec, predictor, mode, inputs.q, inputs.k, inputs.v);
  }
  PredictedBackward<double> backward(PredictorMode mode) const {
    return predicted_backward<double>(spec, predictor, mode, inputs.q, inputs.k, inputs.v, dout);
  }
};

struct FrozenForward {
  Tensor<double> out{kPredictedShape.batch, kPredictedShape.q_heads, kPredictedShape.q_len,
                     kPredictedShape.head_dim};
  LossValue value;
};

// Direct mode written out densely, for given thresholds.
FrozenForward frozen_forward(const PredictorProblem& p, const std::vector<double>& tau_hat) {
  FrozenForward result;
  for (int64_t r = 0; r < kPredictedShape.rows(); ++r) {
    const int64_t b = r / kPredictedShape.q_len / kPredictedShape.q_heads,
                  h = r / kPredictedShape.q_len % kPredictedShape.q_heads, i = r % kPredictedShape.q_len;
    const double alpha = p.spec.normalizer.alpha_of(h);
    const RowMask mask = p.spec.mask.row(kPredictedShape, b, h, i);
    const auto keys = p.inputs.k.matrix(b, kPredictedShape.kv_head_of(h)),
               values = p.inputs.v.matrix(b, kPredictedShape.kv_head_of(h));
    double total = 0;
    Eigen::RowVectorXd out = Eigen::RowVectorXd::Zero(kPredictedShape.head_dim);
    for (int64_t j = 0; j < kPredictedShape.kv_len; ++j) {
      const double z = (alpha - 1) * p.spec.scale * p.inputs.q.matrix(b, h).row(i).dot(keys.row(j));
      if (!mask.visible(j) || z <= tau_hat[r]) continue;
      const double w = std::pow(z - tau_hat[r], 1 / (alpha - 1));
      total += w;
      out += w * values.row(j);
      result.value.support.push_back(static_cast<int32_t>(r * kPredictedShape.kv_len + j));
    }
    if (total > 0) result.out.matrix(b, h).row(i) = out / total;
    result.value.loss += result.out.matrix(b, h).row(i).dot(p.dout.matrix(b, h).row(i));
  }
  return result;
}

// -inf for rows without a key.
std::vector<double> largest_scores(const PredictorProblem& p) {
  std::vector<double> largest(kPredictedShape.rows(), -INFINITY);
  for (int64_t r = 0; r < kPredictedShape.rows(); ++r) {
    const RowAddress at = row_address(kPredictedShape, r);
    const RowMask mask = p.spec.mask.row(kPredictedShape, at.batch, at.q_head, at.query);
    const auto keys = p.inputs.k.matrix(at.batch, kPredictedShape.kv_head_of(at.q_head));
    for (int64_t j = 0; j < kPredictedShape.kv_len; ++j) {
      if (!mask.visible(j)) continue;
      const double product = p.inputs.q.matrix(at.batch, at.q_head).row(at.query).dot(keys.row(j));
      largest[r] = std::max(largest[r], p.spec.scale * product);
    }
  }
  return largest;
}

std::vector<std::vector<double>> alphas() {
  return {{1.2}, {1.5}, {2.0}, {1.3, 1.5, 1.7, 2.0}};
}

}  // namespace

TEST_CASE("tau_hat stands in the bracket where the formula puts it") {
  PredictorProblem p({1.5});
  p.spec.mask.causal = true;
  const auto exact = forward(p.spec, p.inputs);
  for (const double b : {-50.0, 0.0, 50.0}) {
    p.predictor = ThresholdPredictor(kPredictedShape.q_heads, kPredictedShape.head_dim);
    std::ranges::fill(p.predictor.b, b);
    const auto result = p.forward(PredictorMode::direct);
    for (int64_t r = 0; r < kPredictedShape.rows(); ++r) {
      const int64_t head = r / kPredictedShape.q_len, i = r % kPredictedShape.q_len,
                    n = i + 1 + kPredictedShape.kv_len - kPredictedShape.q_len;
      const auto keys = p.inputs.k.matrix(head / kPredictedShape.q_heads,
                                          kPredictedShape.kv_head_of(head % kPredictedShape.q_heads));
      const Eigen::RowVectorXd query =
          p.inputs.q.matrix(head / kPredictedShape.q_heads, head % kPredictedShape.q_heads).row(i);
      const double m = 0.5 * 1.2 * (keys.topRows(n) * query.transpose()).maxCoeff();
      const double u = 1 / (1 + std::exp(-b));
      CHECK(result.tau_hat[r] == doctest::Approx(m - 1 + u * (1 - 1 / std::sqrt(n))));
      if (b < 0) CHECK(result.tau_hat[r] <= exact.tau[r] + 1e-12);
      if (b > 0) CHECK(result.tau_hat[r] >= exact.tau[r] - 1e-12);
    }
  }
}

TEST_CASE("warm start: the result is the exact one, from any prediction") {
  for (const NamedMask& mask : masks_for(kPredictedShape)) {
    for (const auto& alpha : alphas()) {
      PredictorProblem p(alpha, mask.mask);
      INFO(describe(p.spec, mask.name));
      const auto exact = forward(p.spec, p.inputs);
      const auto gradients = backward(p.spec, p.inputs, p.dout);
      for (const double shift : {-30.0, 0.0, 30.0}) {
        for (double& b : p.predictor.b) b += shift;
        const auto warm = p.forward(PredictorMode::warm_start);
        CHECK(max_error(warm.attention.out, exact.out) < 1e-11);
        CHECK(warm.attention.support == exact.support);
        bool same_tau = true;
        for (size_t r = 0; r < exact.tau.size(); ++r) {
          same_tau &=
              warm.attention.tau[r] == exact.tau[r] || std::abs(warm.attention.tau[r] - exact.tau[r]) < 1e-12;
        }
        CHECK(same_tau);
        const auto back = p.backward(PredictorMode::warm_start);
        CHECK(max_error(back.attention.dq, gradients.dq) < 1e-9);
        CHECK(max_error(back.attention.dk, gradients.dk) < 1e-9);
        CHECK(max_error(back.attention.dv, gradients.dv) < 1e-9);
      }
    }
  }
}

TEST_CASE("direct mode uses tau_hat, and its gradients are central differences with tau_hat frozen") {
  // The gradient of alpha, with tau_hat - m and the largest score held fixed.
  for (const NamedMask& mask : masks_for(kPredictedShape)) {
    for (const auto& alpha : alphas()) {
      PredictorProblem p(alpha, mask.mask);
      INFO(describe(p.spec, mask.name));
      const auto result = p.forward(PredictorMode::direct);
      CHECK(max_error(result.attention.out, frozen_forward(p, result.tau_hat).out) < 1e-12);
      CHECK(std::ranges::all_of(result.iterations, [](int n) { return n == 0; }));

      p.spec.normalizer.alpha.resize(kPredictedShape.q_heads, alpha.front());
      const auto gradients = p.backward(PredictorMode::direct).attention;
      const std::vector<double> before = p.spec.normalizer.alpha, largest = largest_scores(p);
      const auto loss = [&] {
        std::vector<double> tau_hat = result.tau_hat;
        for (int64_t r = 0; r < kPredictedShape.rows(); ++r) {
          const int64_t h = r / kPredictedShape.q_len % kPredictedShape.q_heads;
          if (largest[r] > -INFINITY) tau_hat[r] += (p.spec.normalizer.alpha[h] - before[h]) * largest[r];
        }
        return frozen_forward(p, tau_hat).value;
      };
      DifferenceReport report;
      const auto check = [&](double* values, const auto& gradient) {
        const auto size = static_cast<int64_t>(gradient.size());
        report.merge(check_differences(values, gradient.data(), size, 20, 34, loss));
      };
      check(p.inputs.q.data(), gradients.dq);
      check(p.inputs.k.data(), gradients.dk);
      check(p.inputs.v.data(), gradients.dv);
      check(p.spec.normalizer.alpha.data(), gradients.dalpha);
      CHECK(report.worst < 2e-6);
      CHECK(report.mostly_checked());
    }
  }
}

TEST_CASE("the loss is the mean square of tau_hat - tau, and dw, db are its central differences") {
  for (const NamedMask& mask : masks_for(kPredictedShape)) {
    for (const auto& alpha : alphas()) {
      PredictorProblem p(alpha, mask.mask);
      INFO(describe(p.spec, mask.name));
      const auto exact = forward(p.spec, p.inputs);
      for (const PredictorMode mode : {PredictorMode::warm_start, PredictorMode::direct}) {
        const auto result = p.forward(mode);
        double sum = 0;
        int rows = 0;
        for (size_t r = 0; r < exact.tau.size(); ++r) {
          if (exact.tau[r] == INFINITY) continue;  // no visible key
          sum += std::pow(result.tau_hat[r] - exact.tau[r], 2);
          ++rows;
        }
        CHECK(result.loss == doctest::Approx(sum / rows).epsilon(1e-10));
        const auto gradients = p.backward(mode);
        const auto loss = [&] { return LossValue{p.forward(mode).loss, {}}; };
        const auto for_w = check_differences(p.predictor.w.data(), gradients.dw.data(), 12, 0, 0, loss);
        const auto for_b = check_differences(p.predictor.b.data(), gradients.db.data(), 4, 0, 0, loss);
        CHECK(for_w.worst < 1e-8);
        CHECK(for_b.worst < 1e-8);
        CHECK(for_w.checked + for_b.checked == 16);
      }
    }
  }
}

TEST_CASE("one visible key: the bracket is a point, and the prediction exact") {
  PredictorProblem p({1.5});
  p.spec.mask.q_positions.assign(kPredictedShape.q_len, 0);
  p.spec.mask.k_positions.assign(kPredictedShape.kv_len, 1);
  p.spec.mask.k_positions[4] = 0;
  const auto result = p.forward(PredictorMode::direct);
  CHECK(result.tau_hat == result.attention.tau);
  CHECK(result.loss == 0);
  CHECK(max_error(result.attention.out, forward(p.spec, p.inputs).out) == 0);
}

TEST_CASE("rows with NaN or without keys") {
  PredictorProblem p({1.5});
  p.spec.mask.cu_seqlens_q = {0, 1, kPredictedShape.q_len};
  p.spec.mask.cu_seqlens_k = {0, 0, kPredictedShape.kv_len};  // query 0 has no keys
  p.inputs.q.row(0, 0, 3)[0] = std::nan("");
  for (const PredictorMode mode : {PredictorMode::warm_start, PredictorMode::direct}) {
    const auto result = p.forward(mode);
    CHECK(result.attention.out.matrix(0, 0).row(0).isZero(0));
    CHECK(result.attention.tau[0] == INFINITY);
    CHECK(result.tau_hat[0] == INFINITY);
    CHECK(result.attention.out.matrix(0, 0).row(3).array().isNaN().all());
    CHECK(result.attention.out.matrix(0, 1).allFinite());
    const auto gradients = p.backward(mode).attention;
    CHECK(gradients.dq.matrix(0, 0).row(0).isZero(0));
    CHECK(gradients.dq.matrix(0, 0).row(3).array().isNaN().all());
    CHECK(gradients.dq.matrix(1, 1).allFinite());
  }
}

TEST_CASE("a score of -inf counts for no key of the bracket") {
  PredictorProblem p({1.5}), masked({1.5});
  for (int64_t h = 0; h < kPredictedShape.q_heads; ++h) {
    p.inputs.q.matrix(0, h).col(1) = p.inputs.q.matrix(0, h).col(1).cwiseAbs();
    p.inputs.q.matrix(1, h).col(1) = p.inputs.q.matrix(1, h).col(1).cwiseAbs();
  }
  masked.inputs = p.inputs;
  for (int64_t b = 0; b < kPredictedShape.batch; ++b) {
    for (int64_t h = 0; h < kPredictedShape.kv_heads; ++h) p.inputs.k.row(b, h, 4)[1] = -INFINITY;
  }
  masked.spec.mask.q_positions.assign(kPredictedShape.q_len, 0);
  masked.spec.mask.k_positions.assign(kPredictedShape.kv_len, 0);
  masked.spec.mask.k_positions[4] = 1;
  const auto result = p.forward(PredictorMode::direct), expected = masked.forward(PredictorMode::direct);
  CHECK(same_bits(result.tau_hat, expected.tau_hat));
  CHECK(same_bits(result.attention.out, expected.attention.out));
}

TEST_CASE("the predictor refuses what it does not serve") {
  const auto run = [](const PredictorProblem& p) { return p.forward(PredictorMode::direct); };
  PredictorProblem p({1.5});
  p.predictor = ThresholdPredictor(kPredictedShape.q_heads, kPredictedShape.head_dim + 1);
  CHECK_THROWS_AS(run(p), InvalidArgument);
  CHECK_THROWS_AS(run(PredictorProblem({2.5})), Unsupported);
  p = PredictorProblem({1.5});
  p.spec.normalizer.kind = NormalizerKind::power;
  CHECK_THROWS_AS(run(p), Unsupported);
  p = PredictorProblem({1.5});
  p.spec.selection.kind = SelectionKind::top_k_row;
  CHECK_THROWS_AS(run(p), Unsupported);
}
