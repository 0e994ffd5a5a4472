#pragma once
// Trains cpu_ref's threshold predictor on the rows of one head by Adam (Kingma, Ba 2015). Every step uses all
// rows.

#include <cstdint>
#include <vector>

#include "cpu_ref/attention/threshold_predictor.h"
#include "experiments/runner/kind.h"

namespace splash::experiments {

// One training row: its query, and where its exact threshold lies in the solver's bracket.
struct ThresholdSample {
  int64_t row = 0;
  std::vector<double> query;  // [head_dim]
  double offset = 0;          // tau - m, exact
  double width = 0;           // 1 - n^(1-alpha), n the visible keys
  int cold_iterations = 0;    // Newton steps from the left end of the bracket
};

// The rows that see a key, of the head that the parameters name (experiments/kinds/support/inputs.h; alpha).
std::vector<ThresholdSample> threshold_samples(const Parameters& parameters);

// tau_hat - m of a row.
double predicted_offset(const ThresholdSample& sample, const cpu_ref::ThresholdPredictor& predictor);

// Mean of (tau_hat - tau)^2; one head.
double threshold_loss(const std::vector<ThresholdSample>& samples,
                      const cpu_ref::ThresholdPredictor& predictor);

// The gradient of threshold_loss; the same as cpu_ref::predicted_backward gives, without the attention around
// it.
struct ThresholdGradient {
  std::vector<double> dw;  // [head_dim]
  double db = 0;
};
ThresholdGradient threshold_gradient(const std::vector<ThresholdSample>& samples,
                                     const cpu_ref::ThresholdPredictor& predictor);

cpu_ref::ThresholdPredictor train_threshold(const std::vector<ThresholdSample>& samples,
                                            cpu_ref::ThresholdPredictor predictor, int steps,
                                            double learning_rate);

}  // namespace splash::experiments
