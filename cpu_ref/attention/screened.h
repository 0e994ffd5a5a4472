#pragma once
// Exact entmax attention in one blocked product Q K^T and then the support only (DESIGN section 3, on a CPU).
// The fast implementation; forward.h is the plain one that proves it.

#include <cstdint>
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
};

// float, entmax with any alpha, selection all or top_k_row; otherwise Unsupported. Any mask, GQA, any
// lengths. keep_probabilities: needed for backward; memory O(support). Else O(length) beyond inputs and
// outputs.
ScreenedForward screened_forward(const AttentionSpec& spec, TensorView<const float> q,
                                 TensorView<const float> k, TensorView<const float> v,
                                 bool keep_probabilities = false);

// Gradients over the support of `forward` alone: O(support x head_dim). Deterministic for any thread count.
Gradients<float> screened_backward(const AttentionSpec& spec, const ScreenedForward& forward,
                                   TensorView<const float> q, TensorView<const float> k,
                                   TensorView<const float> v, TensorView<const float> dout);

}  // namespace splash::cpu_ref
