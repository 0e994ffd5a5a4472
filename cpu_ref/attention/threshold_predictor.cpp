#include "cpu_ref/attention/threshold_predictor.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <fmt/format.h>

#include "core/error.h"
#include "cpu_ref/attention/backward_rows.h"
#include "cpu_ref/attention/forward_rows.h"
#include "cpu_ref/attention/given_threshold.h"
#include "cpu_ref/attention/normalize_row.h"
#include "cpu_ref/attention/row_gradient.h"

namespace splash::cpu_ref {
namespace {

void require_predictor(const AttentionSpec& spec, const ThresholdPredictor& predictor) {
  const AttentionShape& s = spec.shape;
  if (predictor.heads != s.q_heads || predictor.head_dim != s.head_dim ||
      static_cast<int64_t>(predictor.w.size()) != s.q_heads * s.head_dim ||
      static_cast<int64_t>(predictor.b.size()) != s.q_heads) {
    throw InvalidArgument(
        fmt::format("the threshold predictor is for {} heads of dim {}; this problem has {} of dim {}",
                    predictor.heads, predictor.head_dim, s.q_heads, s.head_dim));
  }
  if (spec.normalizer.kind != NormalizerKind::entmax) {
    throw Unsupported(
        fmt::format("learned thresholds are for entmax, not {}", to_string(spec.normalizer.kind)));
  }
  if (spec.selection.kind != SelectionKind::all) {
    throw Unsupported(
        fmt::format("learned thresholds take selection all, not {}; attention_forward takes any",
                    to_string(spec.selection.kind)));
  }
  for (const double alpha : spec.normalizer.alpha) {
    if (alpha <= 2) continue;
    throw Unsupported(
        fmt::format("learned thresholds take alpha up to 2, not {}; attention_forward takes any", alpha));
  }
}

struct Prediction {
  double max = -std::numeric_limits<double>::infinity();  // m
  double offset = 0;                                      // tau_hat - m
  double slope = 0;                                       // d tau_hat / d(w . q + b)

  double tau_hat(bool poisoned) const {
    if (poisoned) return std::numeric_limits<double>::quiet_NaN();
    return std::isinf(max) ? std::numeric_limits<double>::infinity()
                           : max + offset;  // +inf for a row without keys
  }
};

template <class T>
Prediction predict(const ThresholdPredictor& predictor, double alpha, const RowAddress& at, const T* query,
                   const Row<T>& row) {
  if (row.keys.empty() || row.poisoned) return {};
  double logit = predictor.b[at.q_head];
  for (int64_t c = 0; c < predictor.head_dim; ++c)
    logit += predictor.w[at.q_head * predictor.head_dim + c] * query[c];
  const double u = 1 / (1 + std::exp(-logit));
  const double width = 1 - std::pow(static_cast<double>(row.size()), 1 - alpha);
  const T max = static_cast<T>(alpha - 1) * *std::ranges::max_element(row.scores);
  return {.max = static_cast<double>(max), .offset = u * width - 1, .slope = u * (1 - u) * width};
}

// Returns the row's exact tau, by a solver that starts at tau_hat; row.p receives the exact probabilities.
template <class T>
double warm_started(const AttentionSpec& spec, int64_t q_head, const Prediction& guess, Row<T>& row,
                    int* iterations = nullptr) {
  const SolverOptions options{.start = &guess.offset};
  return normalize_row(spec.normalizer, q_head, Solver::newton, row, options, iterations);
}

}  // namespace

ThresholdPredictor::ThresholdPredictor(int64_t q_heads, int64_t dim)
    : heads(q_heads), head_dim(dim), w(q_heads * dim, 0.0), b(q_heads, 0.0) {}

template <class T>
PredictedForward<T> predicted_forward(const AttentionSpec& spec, const ThresholdPredictor& predictor,
                                      PredictorMode mode, TensorView<const T> q, TensorView<const T> k,
                                      TensorView<const T> v, const ForwardOptions& options) {
  require_inputs(spec, q, k, v);
  require_options(options);
  require_predictor(spec, predictor);
  require_solver(spec.normalizer, options.solver);
  PredictedForward<T> result;
  result.tau_hat.resize(spec.shape.rows());
  result.iterations.assign(spec.shape.rows(), 0);
  result.attention = forward_rows(spec, q, k, v, options, [&](const RowAddress& at, Row<T>& row) {
    const double alpha = spec.normalizer.alpha_of(at.q_head);
    const Prediction guess = predict(predictor, alpha, at, q.row(at.batch, at.q_head, at.query), row);
    const int64_t r = row_index(spec.shape, at);
    result.tau_hat[r] = guess.tau_hat(row.poisoned);
    if (mode == PredictorMode::warm_start)
      return warm_started(spec, at.q_head, guess, row, &result.iterations[r]);
    const double tau = normalize_row(spec.normalizer, at.q_head, options.solver, row);
    if (!row.poisoned) probabilities_at(alpha, -guess.offset, row);
    return tau;
  });
  int64_t rows = 0;
  for (size_t r = 0; r < result.tau_hat.size(); ++r) {
    if (std::isinf(result.tau_hat[r])) continue;
    result.loss += std::pow(result.tau_hat[r] - result.attention.tau[r], 2);
    ++rows;
  }
  if (rows > 0) result.loss /= static_cast<double>(rows);
  return result;
}

template <class T>
PredictedBackward<T> predicted_backward(const AttentionSpec& spec, const ThresholdPredictor& predictor,
                                        PredictorMode mode, TensorView<const T> q, TensorView<const T> k,
                                        TensorView<const T> v, TensorView<const T> dout) {
  require_inputs(spec, q, k, v);
  require_extents("dout", dout, q.batch, q.heads, q.length, q.dim);
  require_predictor(spec, predictor);
  const AttentionShape& shape = spec.shape;
  const int64_t dim = shape.head_dim;
  // One per (batch, head), added in order below.
  std::vector<double> dw(shape.batch * shape.q_heads * dim, 0), db(shape.batch * shape.q_heads, 0);
  std::vector<int64_t> rows(shape.batch * shape.q_heads, 0);
  PredictedBackward<T> result;
  result.attention = backward_rows(
      spec, q, k, v, dout, [&](const RowAddress& at, Row<T>& row, const RowProducts<T>& products) {
        if (row.keys.empty()) return 0.0;
        const double alpha = spec.normalizer.alpha_of(at.q_head);
        const T* query = q.row(at.batch, at.q_head, at.query);
        const Prediction guess = predict(predictor, alpha, at, query, row);
        const double tau = warm_started(spec, at.q_head, guess, row);
        const int64_t slot = at.batch * shape.q_heads + at.q_head;
        const double dlogit = 2 * (guess.tau_hat(row.poisoned) - tau) * guess.slope;
        for (int64_t c = 0; c < dim; ++c) dw[slot * dim + c] += dlogit * query[c];
        db[slot] += dlogit;
        ++rows[slot];
        const bool direct = mode == PredictorMode::direct && !row.poisoned;
        if (direct) probabilities_at(alpha, -guess.offset, row);
        products.add_value_gradient(at, row);
        products.value_products(at, row);
        row.ds.resize(row.keys.size());
        const double dalpha = direct ? gradient_at<T>(alpha, -guess.offset, row.p, row.g, row.ds)
                                     : row_gradient(spec.normalizer, at.q_head, row);
        products.add_score_gradient(at, row);
        return dalpha;
      });
  const int64_t all_rows = std::max<int64_t>(1, std::accumulate(rows.begin(), rows.end(), int64_t{0}));
  result.dw.assign(shape.q_heads * dim, 0);
  result.db.assign(shape.q_heads, 0);
  for (size_t i = 0; i < dw.size(); ++i)
    result.dw[i % result.dw.size()] += dw[i] / static_cast<double>(all_rows);
  for (size_t i = 0; i < db.size(); ++i)
    result.db[i % result.db.size()] += db[i] / static_cast<double>(all_rows);
  return result;
}

template PredictedForward<float> predicted_forward(const AttentionSpec&, const ThresholdPredictor&,
                                                   PredictorMode, TensorView<const float>,
                                                   TensorView<const float>, TensorView<const float>,
                                                   const ForwardOptions&);
template PredictedForward<double> predicted_forward(const AttentionSpec&, const ThresholdPredictor&,
                                                    PredictorMode, TensorView<const double>,
                                                    TensorView<const double>, TensorView<const double>,
                                                    const ForwardOptions&);
template PredictedBackward<float> predicted_backward(const AttentionSpec&, const ThresholdPredictor&,
                                                     PredictorMode, TensorView<const float>,
                                                     TensorView<const float>, TensorView<const float>,
                                                     TensorView<const float>);
template PredictedBackward<double> predicted_backward(const AttentionSpec&, const ThresholdPredictor&,
                                                      PredictorMode, TensorView<const double>,
                                                      TensorView<const double>, TensorView<const double>,
                                                      TensorView<const double>);

}  // namespace splash::cpu_ref
