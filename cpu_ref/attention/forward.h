#pragma once
// The plain reference of attention, row by row: scores, selection, normalisation, weighted sum of values.
// It is the oracle of every other implementation, so it stays simple; screened.h is the fast one.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/attention_spec.h"
#include "core/tensor.h"
#include "cpu_ref/entmax/solver.h"

namespace splash::cpu_ref {

// The probabilities other than zero, before dropout, row after row (compressed sparse rows).
template <class T>
struct SparseProbabilities {
  std::vector<int64_t> row_offsets;  // [batch * q_heads * q_len + 1]
  std::vector<int32_t> columns;      // [nnz], rising within a row
  std::vector<T> values;             // [nnz]
};

// Which (query block, key block) tiles hold a probability other than zero.
struct BlockMap {
  enum : uint8_t { hidden = 0, inactive = 1, active = 2 };  // no visible pair; visible, all p = 0; some p > 0
  int64_t block = 64, q_blocks = 0, k_blocks = 0;
  std::vector<uint8_t> state;  // [batch, q_heads, q_blocks, k_blocks]

  int64_t count(uint8_t s) const;
};

struct ForwardOptions {
  Solver solver = Solver::bisection;
  int64_t map_block = 64;
  bool keep_probabilities = false;  // also return the probabilities; memory O(support)
  // Empty, or [batch, q_heads, q_len]: given thresholds that replace the solver (given_threshold.h). The
  // result's tau is then theirs.
  std::span<const double> tau_offsets{};
};

template <class T>
struct ForwardResult {
  Tensor<T> out;                 // [batch, q_heads, q_len, head_dim]
  std::vector<double> tau;       // [batch, q_heads, q_len], in units of z; entmax only, +inf for an empty row
  std::vector<int64_t> support;  // [batch, q_heads, q_len]: keys with p > 0
  BlockMap blocks;
  std::optional<SparseProbabilities<T>> probabilities;
};

// O = P V. q: [batch, q_heads, q_len, head_dim]; k, v: [batch, kv_heads, kv_len, head_dim]. The probabilities
// are normalised over the selected keys. Memory O(kv_len) per thread beyond inputs and outputs. Throws
// InvalidArgument if spec or extents do not fit. NaN or +inf in a row's scores gives a NaN row.
template <class T>
ForwardResult<T> attention_forward(const AttentionSpec& spec, TensorView<const T> q, TensorView<const T> k,
                                   TensorView<const T> v, const ForwardOptions& options = {});

}  // namespace splash::cpu_ref
