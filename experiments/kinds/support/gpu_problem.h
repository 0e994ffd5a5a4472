#pragma once
// Attention problems on a GPU: the parameters that name one, its inputs, and the float64 oracle.

#include <memory>
#include <string>
#include <vector>

#include "core/attention_spec.h"
#include "core/dtype.h"
#include "core/tensor.h"
#include "cpu_ref/attention/forward.h"
#include "experiments/runner/kind.h"

namespace splash::experiments {

// The parameters batch, heads, lengths, head_dim, dtype, mask, window, documents, normalizer, alpha,
// selection, k_keep, block, share, query_variance, seed.
std::vector<ParameterInfo> problem_parameters();
// Whether it is a parameter of the mask of its name alone. Reports of other masks may be older than it.
bool is_of_one_mask(const std::string& parameter);

// The parameters that say what q, k and v are. input is "gaussian", or a captured text, or a file of tensors.
// A text stands for every layer of the captured model, with all its heads, as one batch entry each. For a
// file, call, layer, scale and alpha_of_file say more (gpu_file_problem.h).
std::vector<ParameterInfo> problem_input_parameters();
// Throws InvalidArgument if a capture has other extents than the problem, or if scale or alpha_of_file is set
// without a file.
void check_input(const Parameters& parameters);

// Throws InvalidArgument if the parameters do not fit together.
void check_problem(const Parameters& parameters);

// Removes parameters without effect on the problem (Kind::used). `seeded`: the seed is used for more than
// Gaussian inputs and shared keys.
void keep_used_problem(Parameters& parameters, bool seeded);

// A text that identifies problem and inputs; a captured or named file by its hash.
std::string problem_key(const Parameters& parameters);

AttentionSpec problem_spec(const Parameters& parameters);
Dtype problem_dtype(const Parameters& parameters);

// The inputs, not rounded to dtype. The last few are cached.
std::shared_ptr<const AttentionInputs<float>> problem_inputs(const Parameters& parameters);

// The gradient of the output that backward starts from: N(0, 1), [batch, q_heads, q_len, head_dim]. Not
// rounded.
std::shared_ptr<const Tensor<float>> problem_d_out(const Parameters& parameters);

// The last queries of the last batch entry, as a problem of their own. The oracle checks only these, because
// all rows would take a CPU too long. With shared keys, rows are a multiple of the selection's tile.
struct CheckedRows {
  AttentionSpec spec;
  int64_t rows = 0;
  Tensor<double> of(
      const Tensor<double>& tensor) const;  // [1, heads, rows, dim] of [batch, heads, length, dim]
  Tensor<double> last_batch(const Tensor<double>& tensor) const;
};
CheckedRows checked_rows(const AttentionSpec& spec, int64_t at_most);
int64_t checked_row_count(const Parameters& parameters, int64_t at_most);  // of that problem

// The double oracle on those rows, for q, k and v as the device has them (rounded).
cpu_ref::ForwardResult<double> oracle(const CheckedRows& checked, const Tensor<double>& q,
                                      const Tensor<double>& k, const Tensor<double>& v);

// dQ of those rows. Gradients of keys and values come from all rows, so they are not checked.
Tensor<double> oracle_d_q(const CheckedRows& checked, const Tensor<double>& q, const Tensor<double>& k,
                          const Tensor<double>& v, const Tensor<double>& d_out);

}  // namespace splash::experiments
