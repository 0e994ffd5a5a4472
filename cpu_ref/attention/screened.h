#pragma once
// Exact entmax attention: one blocked product Q K^T, then only the support (DESIGN section 3, on a CPU). This
// is the fast implementation; forward.h is the plain one that proves it.

#include <cstdint>
#include <span>
#include <vector>

#include "core/attention_spec.h"
#include "core/tensor.h"
#include "cpu_ref/attention/backward.h"
#include "cpu_ref/attention/forward.h"

namespace splash::cpu_ref {

struct ScreenedForward {
  Tensor<float> out;                         // [batch, q_heads, q_len, head_dim]
  std::vector<double> tau;                   // [batch, q_heads, q_len]
  std::vector<int64_t> support;              // [batch, q_heads, q_len]
  SparseProbabilities<float> probabilities;  // if asked for; screened_backward needs it
  int64_t listed = 0;                        // pairs that were above their row's threshold when tested
  int64_t misled_rows = 0;                   // rows computed again because their prediction was above tau
};

// Takes float, entmax with any alpha, selection all or top_k_row, any mask, grouped queries and any lengths;
// otherwise throws Unsupported. keep_probabilities: needed for backward, takes memory O(support). Without it,
// memory is O(length) beyond inputs and outputs.
//
// predicted_peaks: empty, or [batch, q_heads, q_len] predictions of (largest z) - tau (learned thresholds,
// source 004). Keys below the predicted tau are dropped unsolved. A row whose tau turns out to be lower is
// computed again without its prediction. So the result is exact whatever is predicted. Values >= 1 or <= 0
// and NaN predict nothing. Throws InvalidArgument if the number of predictions is not that of the rows.
//
// tau_offsets: empty, or [batch, q_heads, q_len] given thresholds that replace the solver
// (given_threshold.h). The result is exact for that definition. Throws InvalidArgument if there are
// predictions, too.
ScreenedForward screened_forward(const AttentionSpec& spec, TensorView<const float> q,
                                 TensorView<const float> k, TensorView<const float> v,
                                 bool keep_probabilities = false, std::span<const float> predicted_peaks = {},
                                 std::span<const float> tau_offsets = {});

// Gradients over only the support of `forward`: O(support x head_dim). The result does not depend on the
// number of threads. tau_offsets: those given to forward.
Gradients<float> screened_backward(const AttentionSpec& spec, const ScreenedForward& forward,
                                   TensorView<const float> q, TensorView<const float> k,
                                   TensorView<const float> v, TensorView<const float> dout,
                                   std::span<const float> tau_offsets = {});

}  // namespace splash::cpu_ref
