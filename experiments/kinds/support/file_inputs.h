#pragma once
// Reads one query head of a file of tensors, with k and v of its key head. experiments/kinds/support/inputs.h
// calls it where `input` names a file.

#include <string>

#include "core/tensor.h"
#include "experiments/kinds/support/tensor_file.h"

namespace splash::experiments {

// Kind::add_from_inputs: call, layer, length, head_dim, scale and causal, where they are not set. Nothing
// where `input` names no file. Throws as open_tensor_file does.
void add_file_inputs(Parameters& set);

// Throws InvalidArgument: call, layer, batch_entry or head that the file lacks; head_dim that is another;
// length beyond the file's, or a part of a call with other than as many queries as keys; scale not finite.
void check_file_inputs(const Parameters& parameters);

// The first `length` tokens of the head: q, k, v are [1, 1, length, head_dim]; or the whole call. Query head
// h has the key head h / (q_heads / kv_heads).
AttentionInputs<double> load_file_inputs(const Parameters& parameters);

// The same for equal inputs, the scale included; holds the hash of the file.
std::string file_input_key(const Parameters& parameters);

// The same head and as many tokens of another call; all tokens, where all of this one were asked for.
Parameters of_other_call(Parameters parameters, int64_t call);

// The scores' factor, 0 standing for 1/sqrt(head_dim), as a number.
double scale_of(const Parameters& parameters);

}  // namespace splash::experiments
