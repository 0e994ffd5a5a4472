#pragma once
// Reads a file of tensors where `input` names one: a query head with k and v of its key head, which
// experiments/kinds/support/inputs.h hands on; a layer with all its heads; or the scores of a head.
//
// It takes the first tokens, as many as the parameter `length` says, or `n` of a kind without it.

#include <string>

#include "core/tensor.h"
#include "experiments/kinds/support/tensor_file.h"

namespace splash::experiments {

// Kind::add_from_inputs: call, layer, `tokens` (length or n), head_dim, scale and causal, where they are not
// set. Nothing where `input` names no file. Throws as open_tensor_file does.
void add_file_inputs(Parameters& set, const char* tokens = "length");

// The same of a layer: heads and kv_heads, too.
void add_file_layer(Parameters& set);

// The same of a head's scores: rows, too, all queries.
void add_file_scores(Parameters& set);

// Throws InvalidArgument: call, layer, batch_entry or head that the file lacks; head_dim that is another;
// tokens beyond the file's, or a part of a call with other than as many queries as keys; scale not finite.
void check_file_inputs(const Parameters& parameters);
void check_file_layer(const Parameters& parameters);   // and other heads or kv_heads than the file's
void check_file_scores(const Parameters& parameters);  // and more rows than queries

// Throws InvalidArgument where a scale is set and `input` names no file.
void refuse_scale_of_no_file(const Parameters& parameters);

// The first `length` tokens of the head: q, k, v are [1, 1, length, head_dim]; or the whole call. Query head
// h has the key head h / (q_heads / kv_heads).
AttentionInputs<double> load_file_inputs(const Parameters& parameters);

// All heads of the batch entry: q is [1, heads, tokens, head_dim], k and v are [1, kv_heads, tokens,
// head_dim]; of a whole call, q has its queries.
AttentionInputs<float> load_file_layer(const Parameters& parameters);

// scale <q, k> of the head's last `rows` queries, in double, then rounded: [1, 1, rows, n], -inf where causal
// hides the key.
Tensor<float> load_file_scores(const Parameters& parameters);

// The words of load_file_layer's and load_file_scores' values, the scale and the hash of the file included.
std::string file_layer_key(const Parameters& parameters);
std::string file_scores_key(const Parameters& parameters);

// The same for equal inputs, the scale included; holds the hash of the file.
std::string file_input_key(const Parameters& parameters);

// The same head and as many tokens of another call; all tokens, where all of this one were asked for.
Parameters of_other_call(Parameters parameters, int64_t call);

// The scores' factor, 0 standing for 1/sqrt(head_dim), as a number.
double scale_of(const Parameters& parameters);

}  // namespace splash::experiments
