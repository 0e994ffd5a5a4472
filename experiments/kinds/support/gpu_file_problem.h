#pragma once
// A file of tensors as a problem on a GPU: one of its calls and layers, or all of them, a batch entry each.

#include "analysis/captured_heads.h"
#include "core/tensor.h"
#include "experiments/kinds/support/tensor_file.h"

namespace splash::experiments {

// Values of the parameters `layer` and `call` that stand for all of them. Batch entries are call by call, in
// it layer by layer.
inline constexpr int64_t kAllLayers = -1, kAllCalls = -1;

// The flag by which alpha and factor of each query head are those of the file's method, as a converted model
// has them. The layer must be one, and the normalizer entmax.
inline constexpr const char* kAlphaOfFile = "alpha_of_file";

// Kind::add_from_inputs: sets batch, q_heads, kv_heads, q_len, kv_len, head_dim, scale and mask if they are
// not set. Does nothing if `input` names no file. Throws what open_tensor_file throws, and InvalidArgument if
// the scales of the layers asked for differ, or the extents or masks of the calls.
void add_file_problem(Parameters& set);

// Throws InvalidArgument if the problem does not fit the file: other extents, or other lengths. Lengths must
// be the file's own or, for a call with as many queries as keys, one shorter length for both. Also throws if
// alpha_of_file is set and the file has no alphas for the layer: InvalidArgument, or ReportError where its
// method is damaged.
void check_file_problem(const Parameters& parameters, const AttentionShape& asked);

// The query heads of a problem with alpha_of_file. Files are read once.
const analysis::CapturedHeads& file_heads(const Parameters& parameters);

// The first q_len queries and kv_len keys: [calls * layers * batch, heads, length, head_dim]. With
// alpha_of_file queries are rounded to dtype and multiplied by their head's factor in float32, as
// splash_attention.hugging_face multiplies them. What rounds them once more has what the model's kernels get.
AttentionInputs<float> load_file_problem(const Parameters& parameters);

std::string file_problem_key(const Parameters& parameters);

}  // namespace splash::experiments
