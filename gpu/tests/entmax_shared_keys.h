#pragma once
// Inputs of whose keys all rows list the same few (gpu/entmax/hopper/solve/shared_keys.cuh).

#include "core/workload.h"
#include "gpu/tests/ladder_cases.h"

namespace splash::gpu::testing {

// `count` keys, among them the first and the last, matter to all queries about as much. No other key does.
inline AttentionInputs<double> shared_keys_inputs(const AttentionShape& shape, Dtype dtype, int64_t count) {
  auto inputs = make_inputs<double>({.seed = test_seed()}, shape);
  auto& [q, k, v] = inputs;
  constexpr int64_t kAsked = 8;  // dimensions
  constexpr double kOthers =
      0.25;  // of the queries' other elements: z of the shared keys differs by some 0.1
  for (int64_t row = 0; row < shape.q_len; ++row) {
    for (int64_t d = 0; d < shape.head_dim; ++d) {
      double& element = q.row(0, 0, row)[d];
      element = d < kAsked ? 1 : kOthers * element;
    }
  }
  for (int64_t key = 0; key < shape.kv_len; ++key) std::fill_n(k.row(0, 0, key), kAsked, 0.0);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t key = count == 1 ? 0 : i * (shape.kv_len - 1) / (count - 1);
    std::fill_n(k.row(0, 0, key), kAsked, 12.0);
  }
  round_inputs(inputs, dtype);
  return inputs;
}

}  // namespace splash::gpu::testing
