#pragma once
// Exact entmax attention in one blocked product Q K^T and then the support only (DESIGN section 3, on a CPU).
// The fast implementation; forward.h is the plain one that proves it.

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
  SparseProbabilities<float> probabilities;  // filled where asked for: what screened_backward walks
  int64_t listed = 0;       // pairs that were above their row's threshold when they were looked at
  int64_t misled_rows = 0;  // that were done again because their prediction lay above tau
};

// float, entmax with any alpha, selection all or top_k_row; otherwise Unsupported. Any mask, GQA, any
// lengths. keep_probabilities: needed for backward; memory O(support). Else O(length) beyond inputs and
// outputs.
//
// predicted_peaks: none, or [batch, q_heads, q_len] predictions of z's largest less tau (learned thresholds,
// source 004). Keys below the predicted tau are dropped unsolved; a row whose tau turns out to lie below is
// done again without. So the result is exact whatever is predicted; 1 and more, 0 and less, and NaN predict
// nothing. Throws InvalidArgument where there are predictions of another number of rows.
//
// tau_offsets: none, or [batch, q_heads, q_len]: thresholds are given, not solved for (given_threshold.h).
// Exact for that definition. Throws InvalidArgument where there are predictions too.
ScreenedForward screened_forward(const AttentionSpec& spec, TensorView<const float> q,
                                 TensorView<const float> k, TensorView<const float> v,
                                 bool keep_probabilities = false, std::span<const float> predicted_peaks = {},
                                 std::span<const float> tau_offsets = {});

// Gradients over the support of `forward` alone: O(support x head_dim). Deterministic for any thread count.
// tau_offsets: forward's.
Gradients<float> screened_backward(const AttentionSpec& spec, const ScreenedForward& forward,
                                   TensorView<const float> q, TensorView<const float> k,
                                   TensorView<const float> v, TensorView<const float> dout,
                                   std::span<const float> tau_offsets = {});

}  // namespace splash::cpu_ref
