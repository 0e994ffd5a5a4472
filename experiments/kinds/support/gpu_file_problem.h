#pragma once
// A file of tensors as a problem on a GPU: one of its calls and layers, or all of them, a batch entry each.

#include "core/tensor.h"
#include "experiments/kinds/support/tensor_file.h"

namespace splash::experiments {

// Values of the parameters `layer` and `call` that stand for all of them. Batch entries are call by call, in
// it layer by layer.
inline constexpr int64_t kAllLayers = -1, kAllCalls = -1;

// Kind::add_from_inputs: sets batch, q_heads, kv_heads, q_len, kv_len, head_dim, scale and mask if they are
// not set. Does nothing if `input` names no file. Throws what open_tensor_file throws, and InvalidArgument if
// the scales of the layers asked for differ, or the extents or masks of the calls.
void add_file_problem(Parameters& set);

// Throws InvalidArgument if the problem does not fit the file: other extents, or other lengths. Lengths must
// be the file's own or, for a call with as many queries as keys, one shorter length for both.
void check_file_problem(const Parameters& parameters, const AttentionShape& asked);

// The first q_len queries and kv_len keys: [calls * layers * batch, heads, length, head_dim].
AttentionInputs<float> load_file_problem(const Parameters& parameters);

std::string file_problem_key(const Parameters& parameters);

}  // namespace splash::experiments
