#pragma once
// A file of tensors as a problem on a GPU: one of its layers, or all of them, one batch entry per layer.

#include "core/tensor.h"
#include "experiments/kinds/support/tensor_file.h"

namespace splash::experiments {

// The parameter `layer` of such a problem: all layers.
inline constexpr int64_t kAllLayers = -1;

// Kind::add_from_inputs: batch, q_heads, kv_heads, q_len, kv_len, head_dim, scale and mask, where they are
// not set. Nothing where `input` names no file. Throws as open_tensor_file does, and InvalidArgument where
// all layers are asked for and their scales differ.
void add_file_problem(Parameters& set);

// Throws InvalidArgument where the problem is not the file's: other extents, or lengths that are neither its
// own nor, of a call of as many queries as keys, one shorter length of both.
void check_file_problem(const Parameters& parameters, const AttentionShape& asked);

// The first q_len queries and kv_len keys: [layers * batch, heads, length, head_dim].
AttentionInputs<float> load_file_problem(const Parameters& parameters);

std::string file_problem_key(const Parameters& parameters);

}  // namespace splash::experiments
