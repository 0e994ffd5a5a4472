#include "experiments/kinds/support/threshold_training.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cpu_ref/attention/row.h"
#include "experiments/kinds/support/inputs.h"

namespace splash::experiments {
namespace {

double sigmoid_of(const ThresholdSample& sample, const cpu_ref::ThresholdPredictor& predictor) {
  const double logit =
      std::inner_product(sample.query.begin(), sample.query.end(), predictor.w.begin(), predictor.b[0]);
  return 1 / (1 + std::exp(-logit));
}

double error_of(const ThresholdSample& sample, double u) {
  return u * sample.width - 1 - sample.offset;
}

struct Moments {
  double mean = 0, square = 0;
};

// One Adam step of one parameter; `step` counts from 1.
void adam_step(double& value, double gradient, Moments& m, int step, double learning_rate) {
  constexpr double kMeanDecay = 0.9, kSquareDecay = 0.999, kEpsilon = 1e-8;
  m.mean = kMeanDecay * m.mean + (1 - kMeanDecay) * gradient;
  m.square = kSquareDecay * m.square + (1 - kSquareDecay) * gradient * gradient;
  const double mean = m.mean / (1 - std::pow(kMeanDecay, step));
  const double square = m.square / (1 - std::pow(kSquareDecay, step));
  value -= learning_rate * mean / (std::sqrt(square) + kEpsilon);
}

}  // namespace

double predicted_offset(const ThresholdSample& sample, const cpu_ref::ThresholdPredictor& predictor) {
  return sigmoid_of(sample, predictor) * sample.width - 1;
}

std::vector<ThresholdSample> threshold_samples(const Parameters& p) {
  const auto inputs = load_inputs(p);
  const AttentionSpec spec = input_spec(p, *inputs);
  const double alpha = get_number(p, "alpha");
  cpu_ref::RowScorer<double> score(spec, inputs->q, inputs->k);
  cpu_ref::Row<double> row;
  std::vector<ThresholdSample> samples;
  for (int64_t r = 0; r < spec.shape.rows(); ++r) {
    const auto at = cpu_ref::row_address(spec.shape, r);
    score(at, spec.mask.row(spec.shape, at.batch, at.q_head, at.query), row);
    if (row.keys.empty()) continue;
    for (double& s : row.scores) s *= alpha - 1;  // scores become z
    const auto solution = cpu_ref::solve_tau<double>(cpu_ref::Solver::newton, row.scores, alpha);
    const double* query = inputs->q.row(at.batch, at.q_head, at.query);
    samples.push_back({.row = r,
                       .query = {query, query + spec.shape.head_dim},
                       .offset = solution.offset,
                       .width = 1 - std::pow(static_cast<double>(row.size()), 1 - alpha),
                       .cold_iterations = solution.iterations});
  }
  return samples;
}

double threshold_loss(const std::vector<ThresholdSample>& samples,
                      const cpu_ref::ThresholdPredictor& predictor) {
  double loss = 0;
  for (const auto& sample : samples) loss += std::pow(error_of(sample, sigmoid_of(sample, predictor)), 2);
  return loss / static_cast<double>(samples.size());
}

ThresholdGradient threshold_gradient(const std::vector<ThresholdSample>& samples,
                                     const cpu_ref::ThresholdPredictor& predictor) {
  ThresholdGradient gradient{std::vector<double>(predictor.w.size(), 0.0)};
  for (const auto& sample : samples) {
    const double u = sigmoid_of(sample, predictor);
    const double dlogit =
        2 * error_of(sample, u) * u * (1 - u) * sample.width / static_cast<double>(samples.size());
    for (size_t c = 0; c < sample.query.size(); ++c) gradient.dw[c] += dlogit * sample.query[c];
    gradient.db += dlogit;
  }
  return gradient;
}

cpu_ref::ThresholdPredictor train_threshold(const std::vector<ThresholdSample>& samples,
                                            cpu_ref::ThresholdPredictor predictor, int steps,
                                            double learning_rate) {
  std::vector<Moments> w_moments(predictor.w.size());
  Moments b_moments;
  for (int step = 1; step <= steps; ++step) {
    const ThresholdGradient gradient = threshold_gradient(samples, predictor);
    for (size_t c = 0; c < predictor.w.size(); ++c) {
      adam_step(predictor.w[c], gradient.dw[c], w_moments[c], step, learning_rate);
    }
    adam_step(predictor.b[0], gradient.db, b_moments, step, learning_rate);
  }
  return predictor;
}

}  // namespace splash::experiments
