#pragma once
// Learned thresholds (source 004): u = sigmoid(w . q + b) places tau_hat = m - 1 + u (1 - n^(1-alpha)) in
// tau's bracket. m is the row's largest z and n the number of its visible keys.

#include <vector>

#include "core/attention_spec.h"
#include "core/tensor.h"
#include "cpu_ref/attention/backward.h"
#include "cpu_ref/attention/forward.h"

namespace splash::cpu_ref {

struct ThresholdPredictor {
  int64_t heads = 0, head_dim = 0;
  std::vector<double> w;  // [q_heads, head_dim]
  std::vector<double> b;  // [q_heads]
  ThresholdPredictor() = default;
  ThresholdPredictor(int64_t q_heads, int64_t head_dim);  // all zero: the middle of the bracket
};

enum class PredictorMode {
  warm_start,  // tau_hat starts Newton; the result stays exact
  direct,      // p = [z - tau_hat]_+^(1/(alpha-1)), renormalised
};

template <class T>
struct PredictedForward {
  ForwardResult<T> attention;
  std::vector<double> tau_hat;  // [batch, q_heads, q_len]
  std::vector<int> iterations;  // [batch, q_heads, q_len], of the warm-started solver; 0 in direct mode
  double loss = 0;              // mean over rows with a visible key of (tau_hat - tau)^2, tau exact
};

template <class T>
struct PredictedBackward {
  Gradients<T> attention;  // direct: those of given_threshold.h, with tau_hat held fixed
  std::vector<double> dw;  // [q_heads, head_dim]: gradient of the loss
  std::vector<double> db;  // [q_heads]
};

// Takes entmax with 1 < alpha <= 2 and selection all; otherwise throws Unsupported.
template <class T>
PredictedForward<T> predicted_forward(const AttentionSpec& spec, const ThresholdPredictor& predictor,
                                      PredictorMode mode, TensorView<const T> q, TensorView<const T> k,
                                      TensorView<const T> v, const ForwardOptions& options = {});
template <class T>
PredictedBackward<T> predicted_backward(const AttentionSpec& spec, const ThresholdPredictor& predictor,
                                        PredictorMode mode, TensorView<const T> q, TensorView<const T> k,
                                        TensorView<const T> v, TensorView<const T> dout);

}  // namespace splash::cpu_ref
