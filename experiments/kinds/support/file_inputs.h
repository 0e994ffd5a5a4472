#pragma once
// Reads the file of tensors that `input` names: a query head with k and v of its key head, which
// experiments/kinds/support/inputs.h passes on; a layer with all its heads; or the scores of a head.
//
// It takes the first tokens, as many as the parameter `length` says, or `n` in a kind without `length`.

#include <string>

#include "core/tensor.h"
#include "experiments/kinds/support/tensor_file.h"

namespace splash::experiments {

// Kind::add_from_inputs: sets call, layer, `tokens` (length or n), head_dim, scale and causal if they are not
// set. Does nothing if `input` names no file. Throws what open_tensor_file throws.
void add_file_inputs(Parameters& set, const char* tokens = "length");

// The same for a layer: also sets heads and kv_heads.
void add_file_layer(Parameters& set);

// The same for a head's scores: also sets rows, to all queries.
void add_file_scores(Parameters& set);

// Throws InvalidArgument for a call, layer, batch_entry or head that the file lacks, for another head_dim,
// for more tokens than the file has, for a part of a call whose numbers of queries and keys differ, and for a
// scale that is not finite.
void check_file_inputs(const Parameters& parameters);
void check_file_layer(const Parameters& parameters);   // also for other heads or kv_heads than the file's
void check_file_scores(const Parameters& parameters);  // also for more rows than queries

// Throws InvalidArgument if a scale is set and `input` names no file.
void refuse_scale_of_no_file(const Parameters& parameters);

// The first `length` tokens of the head: q, k and v are [1, 1, length, head_dim]; or the whole call. Query
// head h reads key head h / (q_heads / kv_heads).
AttentionInputs<double> load_file_inputs(const Parameters& parameters);

// All heads of the batch entry: q is [1, heads, tokens, head_dim], k and v are [1, kv_heads, tokens,
// head_dim]. For a whole call, q has as many tokens as the call has queries.
AttentionInputs<float> load_file_layer(const Parameters& parameters);

// scale <q, k> of the head's last `rows` queries, computed in double, then rounded: [1, 1, rows, n], with
// -inf where causal hides the key.
Tensor<float> load_file_scores(const Parameters& parameters);

// Keys for the results of load_file_layer and load_file_scores; they include the scale and the file's hash.
std::string file_layer_key(const Parameters& parameters);
std::string file_scores_key(const Parameters& parameters);

// A key for the results of load_file_inputs: equal for equal inputs and scale. It includes the file's hash.
std::string file_input_key(const Parameters& parameters);

// Parameters for the same head of another call, with as many tokens; with all tokens if they ask for all
// here.
Parameters of_other_call(Parameters parameters, int64_t call);

// The scores' factor. 0 stands for 1/sqrt(head_dim), which it returns as a number.
double scale_of(const Parameters& parameters);

}  // namespace splash::experiments
