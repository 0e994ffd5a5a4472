#include <doctest/doctest.h>

#include "cpu_ref/attention/backward.h"
#include "cpu_ref/tests/attention_differences.h"
#include "cpu_ref/tests/attention_test_support.h"

using namespace splash;
using namespace splash::cpu_ref;
using namespace splash::cpu_ref::test;

namespace {

struct Problem {
  AttentionSpec spec;
  AttentionInputs<double> inputs;
  Tensor<double> dout;

  // L = <dO, O>.
  LossValue loss() const {
    const auto result =
        forward(spec, inputs, {.solver = Solver::halley_bisection, .keep_probabilities = true});
    LossValue value{0, result.probabilities->columns};
    for (int64_t i = 0; i < dout.size(); ++i) value.loss += dout.data()[i] * result.out.data()[i];
    // The flattened support: equal columns in other rows would be another support.
    for (const int64_t n : result.support) value.support.push_back(static_cast<int32_t>(n));
    for (int64_t row = 0; !spec.sinks.empty() && row < spec.shape.rows(); ++row) {
      const int64_t h = row / spec.shape.q_len % spec.shape.q_heads;
      value.support.push_back((spec.normalizer.alpha_of(h) - 1) * spec.sink_of(h) > result.tau[row] ? 1 : 0);
    }
    return value;
  }
};

Problem make_problem(const AttentionShape& shape, const Normalizer& normalizer, const Selection& selection,
                     const Mask& mask, uint64_t seed) {
  Problem problem{{shape, 1.1, normalizer, selection, mask}, random_inputs<double>(shape, seed), {}};
  problem.dout = random_dout<double>(shape, seed);
  if (normalizer.kind == NormalizerKind::softmax) return problem;
  problem.spec.normalizer.alpha.resize(shape.q_heads);  // one per head, as dalpha is per head
  for (int64_t h = 0; h < shape.q_heads; ++h) {
    problem.spec.normalizer.alpha[h] = normalizer.alpha.front() + 0.03 * static_cast<double>(h);
  }
  return problem;
}

DifferenceReport check_problem(Problem& p, int64_t samples) {
  const auto gradients = backward(p.spec, p.inputs, p.dout);
  const auto loss = [&] { return p.loss(); };
  DifferenceReport report;
  const auto check = [&](Tensor<double>& values, const Tensor<double>& gradient, uint64_t seed) {
    report.merge(check_differences(values.data(), gradient.data(), values.size(), samples, seed, loss));
  };
  check(p.inputs.q, gradients.dq, 1);
  check(p.inputs.k, gradients.dk, 2);
  check(p.inputs.v, gradients.dv, 3);
  for (int64_t h = 0; h < std::ssize(p.spec.sinks); ++h) {
    if (std::isinf(p.spec.sinks[h])) {
      CHECK(gradients.dsinks[h] == 0);
      continue;
    }
    report.merge(check_differences(&p.spec.sinks[h], &gradients.dsinks[h], 1, 0, 5, loss));
  }
  CHECK(gradients.dbias.size() == p.spec.bias.table.size());
  report.merge(check_differences(p.spec.bias.table.data(), gradients.dbias.data(),
                                 std::ssize(gradients.dbias), samples, 6, loss));
  if (p.spec.normalizer.kind == NormalizerKind::softmax) {
    CHECK(std::ranges::all_of(gradients.dalpha, [](double d) { return d == 0; }));
  } else {
    report.merge(check_differences(p.spec.normalizer.alpha.data(), gradients.dalpha.data(),
                                   p.spec.shape.q_heads, 0, 4, loss));
  }
  return report;
}

}  // namespace

TEST_CASE(
    "dQ, dK, dV and dalpha are central differences: normalizers x selections x masks, GQA, odd lengths") {
  const AttentionShape shape{1, 2, 1, 5, 11, 3};
  uint64_t seed = 100;
  DifferenceReport total;
  for (const NamedMask& mask : masks_for(shape)) {
    for (const Normalizer& normalizer : all_normalizers()) {
      for (const Selection& selection : all_selections(shape)) {
        Problem problem = make_problem(shape, normalizer, selection, mask.mask, seed++);
        INFO(describe(problem.spec, mask.name));
        const DifferenceReport report = check_problem(problem, 5);
        CHECK(report.worst < 2e-6);
        CHECK(report.checked > 5);
        total.merge(report);
      }
    }
  }
  CHECK(total.mostly_checked());
}

TEST_CASE("central differences of capped scores, sinks, dropout and a bias") {
  const AttentionShape shape{2, 4, 2, 5, 11, 3};
  uint64_t seed = 500;
  DifferenceReport total;
  for (const Normalizer& normalizer : all_normalizers()) {
    for (const Selection& selection : all_selections(shape)) {
      Problem problem = make_problem(shape, normalizer, selection, {.causal = true}, seed++);
      modify(problem.spec);
      INFO(describe(problem.spec));
      const DifferenceReport report = check_problem(problem, 6);
      CHECK(report.worst < 2e-6);
      CHECK(report.checked > 5);
      total.merge(report);
    }
  }
  CHECK(total.mostly_checked());
}

TEST_CASE("every entry of dQ, dK, dV and dalpha over batches and groups") {
  const AttentionShape shape{2, 4, 2, 3, 7, 3};
  for (const Normalizer& normalizer : all_normalizers()) {
    Problem problem = make_problem(shape, normalizer, {}, {.causal = true}, 40);
    INFO(describe(problem.spec));
    const DifferenceReport report = check_problem(problem, 0);
    CHECK(report.worst < 2e-6);
    CHECK(report.mostly_checked());
  }
}

TEST_CASE("straight-through: dV sees the selected keys, dQ and dK the Jacobian without the selection") {
  const AttentionShape shape{1, 4, 2, 5, 23, 3};
  for (const Normalizer& normalizer : all_normalizers()) {
    for (const Selection& selection : all_selections(shape)) {
      Problem hard = make_problem(shape, normalizer, selection, {.causal = true}, 60);
      Problem full = hard;  // the surrogate <dO, P_full V>
      full.spec.selection = {};
      INFO(describe(hard.spec));
      const auto gradients = backward(hard.spec, hard.inputs, hard.dout, {.straight_through = true});

      DifferenceReport report;
      const auto full_loss = [&] { return full.loss(); };
      report.merge(
          check_differences(full.inputs.q.data(), gradients.dq.data(), gradients.dq.size(), 8, 5, full_loss));
      report.merge(
          check_differences(full.inputs.k.data(), gradients.dk.data(), gradients.dk.size(), 8, 6, full_loss));
      const auto hard_loss = [&] { return hard.loss(); };
      report.merge(
          check_differences(hard.inputs.v.data(), gradients.dv.data(), gradients.dv.size(), 8, 7, hard_loss));
      CHECK(report.worst < 2e-6);
      CHECK(report.mostly_checked());

      CHECK(same_bits(gradients.dalpha, backward(hard.spec, hard.inputs, hard.dout).dalpha));
    }
  }
}

TEST_CASE("straight-through changes dQ where the selection drops support, and nothing where there is none") {
  const AttentionShape shape{1, 1, 1, 4, 30, 3};
  Problem p = make_problem(shape, {NormalizerKind::entmax, {1.5}},
                           {.kind = SelectionKind::top_k_row, .k_keep = 2}, {}, 70);
  const auto through = backward(p.spec, p.inputs, p.dout, {.straight_through = true});
  CHECK(max_error(through.dq, backward(p.spec, p.inputs, p.dout).dq) > 1e-3);
  p.spec.selection = {};
  CHECK(same_bits(backward(p.spec, p.inputs, p.dout, {.straight_through = true}).dq,
                  backward(p.spec, p.inputs, p.dout).dq));
}

TEST_CASE("float gradients agree with double ones") {
  const AttentionShape shape{2, 4, 2, 9, 17, 4};
  const auto inputs =
      random_inputs<float>(shape, 80, 0.25);  // scores exact in float: same support, same selection
  const auto dout = random_dout<float>(shape, 80);
  for (const Normalizer& normalizer : all_normalizers()) {
    for (const Selection& selection : all_selections(shape)) {
      const AttentionSpec spec{shape, 0.25, normalizer, selection, {.causal = true}};
      INFO(describe(spec));
      const auto single = backward(spec, inputs, dout);
      const auto exact = backward(spec, inputs.cast<double>(), dout.cast<double>());
      // For alpha > 2 the derivative p^(2-alpha) magnifies the rounding of a p near 0.
      const double tolerance = normalizer.alpha.front() > 2 ? 2e-2 : 2e-4;
      CHECK(max_error(single.dq, exact.dq) < tolerance);
      CHECK(max_error(single.dk, exact.dk) < tolerance);
      CHECK(max_error(single.dv, exact.dv) < tolerance);
      for (size_t h = 0; h < exact.dalpha.size(); ++h) {
        CHECK(single.dalpha[h] == doctest::Approx(exact.dalpha[h]).epsilon(tolerance).scale(10));
      }
    }
  }
}
