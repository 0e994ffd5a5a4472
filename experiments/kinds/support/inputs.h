#pragma once
// Inputs of the kinds that need Q, K and V of one head: their parameters and the tensors.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/attention_spec.h"
#include "core/tensor.h"
#include "experiments/kinds/support/file_inputs.h"
#include "experiments/runner/kind.h"

namespace splash::experiments {

// Path of the encoder's captured tensors, minilm.h5, as shipped_capture finds it.
std::string captures_path();
const std::string& captures_hash();  // of the file's bytes

// The parameters input; text, layer, head (a captured head); call, batch_entry, scale (a file,
// experiments/kinds/support/file_inputs.h); length, head_dim, seed, query_variance (a synthetic head);
// causal.
std::vector<ParameterInfo> input_parameters();
std::vector<ParameterInfo> input_parameters(std::span<const char* const> names);  // only these

// A kind whose cases read the inputs of one head.
class HeadKind : public Kind {
 public:
  void add_from_inputs(Parameters& set) const override { add_file_inputs(set); }
  // Throws InvalidArgument for an unknown input or text, a layer or head out of range, a synthetic size below
  // 1, or a scale without a file.
  void check(const Parameters& p) const override;
  // Without parameters that have no effect on the inputs, and with the extents of a capture.
  Parameters used(const Parameters& p) const override;
  // A hash of the captured or named file if one is read, otherwise the synthetic recipe.
  std::string input_hash(const Parameters& p) const override;
};

// One head: q, k and v are [1, 1, length, head_dim]; q of a file may have another length. Captured values are
// fp16 numbers, exact in double; values of files are float32. The last few results are cached, so that a
// sweep over alpha or k_keep reads nothing twice.
std::shared_ptr<const AttentionInputs<double>> load_inputs(const Parameters& parameters);

// A text that identifies the inputs alone, the same for equal inputs.
std::string input_key(const Parameters& parameters);

// Shape, scale and mask of the inputs; normalizer and selection are left at their defaults.
AttentionSpec input_spec(const Parameters& parameters, const AttentionInputs<double>& inputs);

// The tokens of a captured text.
std::vector<std::string> load_tokens(const std::string& text);

}  // namespace splash::experiments
