#pragma once
// The oracle's own oracle: dense matrices, as few lines as possible, no code shared with forward.cpp. For
// tests only: O(length^2) memory, O(kv_len^2) time per row.

#include "core/attention_spec.h"
#include "core/tensor.h"

namespace splash::cpu_ref {

struct NaiveForward {
  Tensor<double> out;            // [batch, q_heads, q_len, head_dim]
  Tensor<double> probabilities;  // [batch, q_heads, q_len, kv_len], before dropout
};

// Values of V must be finite. Otherwise the same as attention_forward.
NaiveForward naive_forward(const AttentionSpec& spec, const AttentionInputs<double>& inputs);

}  // namespace splash::cpu_ref
