#pragma once
// Steps of decode as cases: their parameters, captured texts as caches, and the double oracle of sampled
// heads.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "analysis/decode_bytes.h"
#include "core/tensor.h"
#include "experiments/runner/kind.h"
#include "gpu/decode/benchmark/steps.h"

namespace splash::experiments {

// The parameters batch, heads, lengths, head_dim, dtype, page_size, alpha, query_variance, seed, and input,
// call, layer, scale.
std::vector<ParameterInfo> decode_parameters();

// Kind::add_from_inputs: of a file or a shipped capture, heads, kv_len, head_dim, scale, and the first layer.
void add_captured_step(Parameters& set);

// Throws InvalidArgument or Unsupported if decode does not take such a step, or if the file does not fit it.
// bits: of the low-bit copy.
void check_decode(const Parameters& parameters, int bits);

AttentionShape decode_shape(const Parameters& parameters);
gpu::decode::StepProblem step_problem(const Parameters& parameters, int bits);
std::string decode_key(const Parameters& parameters);  // identifies the inputs

// A captured text as it is decoded: sequence b holds the text up to b tokens before its end, and its queries
// are those of its last q_len tokens; those of the step before, of the q_len tokens before these. Sequences
// beyond the queries that the file holds begin again. A file of one key head gives its head to all. None if
// `input` names no file.
std::optional<gpu::decode::GivenTensors> captured_step(const Parameters& parameters);

// How far rows are from the double oracle for the keys that the device has.
struct DecodeErrors {
  double squared = 0, reference = 0;     // sums of (out - ref)^2 and ref^2
  double max_error = 0, tau_error = 0;   // largest |out - ref| and |tau - ref|
  int64_t rows = 0, wrong_supports = 0;  // a support is wrong if a key with |z - tau| > kSupportEpsilon is
                                         // missing or too many, as counts tell
  void add(const DecodeErrors& other);
};
constexpr double kSupportEpsilon = 1e-5;  // times 1 + |largest z|

// Of one sequence's key head. k, v: [1, 1, length, head_dim]; q, out: [1, group, q_len, head_dim]; tau and
// support: [group, q_len].
struct DecodedHead {
  Tensor<double> k, v, q, out;
  std::vector<float> tau;
  std::vector<int32_t> support;
  DecodeErrors errors(double alpha, double scale) const;
};

// Of `heads` (sequence, key head) pairs, spread over both, after the step whose results these are.
DecodeErrors check_heads(const gpu::decode::Steps& steps, const gpu::decode::StepProblem& problem,
                         const gpu::decode::StepResults& results, int64_t heads);

// Sums over the units of a step. lengths: keys of each sequence.
analysis::DecodeCounts decode_counts(const AttentionShape& shape, std::span<const int32_t> lengths,
                                     const gpu::decode::StepResults& results);

}  // namespace splash::experiments
