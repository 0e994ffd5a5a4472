#pragma once
// Inputs for which forward's samples bound some rows so weakly that their lists do not fit in shared memory
// (gpu/entmax/hopper/solve/thin_lists.cuh), though their supports do.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/workload.h"
#include "gpu/tests/ladder_cases.h"

namespace splash::gpu::testing {

struct WeakBounds {
  double scale = 1, row_scale = 0.55;  // of all queries, and of those rows' queries beside it
  bool ties = false;                   // their scores are few values
};

// Whether a row is one of them: both rows of a quad of lanes.
inline bool has_weak_bound(int64_t row) {
  return row % 16 == 3 || row % 16 == 11;
}

// Those rows ask for the first dimensions, all equally strongly, so that no draw has a broad support. All
// others ask for the last, twice as strongly: else their samples might lie so close together that a block of
// few rows takes the dense path. Near keys have nothing in the first ones. Neither has every second far key,
// which is large where all queries are 0, so that it is chosen. Of the other keys half exceed those rows'
// bounds.
inline AttentionInputs<double> weak_bounds_inputs(const AttentionShape& shape, Dtype dtype,
                                                  const WeakBounds& weak) {
  constexpr double kQueryVariance = 6;
  auto inputs = make_inputs<double>({.seed = test_seed(), .query_variance = kQueryVariance}, shape);
  auto& [q, k, v] = inputs;
  const int64_t half = shape.head_dim / 2, last = shape.head_dim - 8;
  constexpr int64_t kFirst = 128, kLast = 800, kDistinct = 40;
  for (int64_t row = 0; row < shape.q_len; ++row) {
    const bool weakly = has_weak_bound(row);
    double* const query = q.row(0, 0, row);
    const double norm = std::sqrt(std::inner_product(query, query + half, query, 0.0));
    const double drawn = std::sqrt(kQueryVariance * static_cast<double>(half));
    for (int64_t d = 0; d < shape.head_dim; ++d) {
      const bool asked = d < last && (d < half) == weakly;
      query[d] *= asked ? weak.scale * (weakly ? weak.row_scale * drawn / norm : 2) : 0;
    }
  }
  for (int64_t key = 0; key < shape.kv_len; ++key) {
    const bool near = key < kFirst || key >= shape.kv_len - kLast, chosen = !near && key % 2 == 0;
    double* const elements = k.row(0, 0, key);
    if (weak.ties && !near && key >= kFirst + 2 * kDistinct)
      std::copy_n(k.row(0, 0, kFirst + 1 + key % kDistinct / 2 * 2), half, elements);
    if (near || chosen) std::fill_n(elements, half, 0.0);
    for (int64_t d = last; d < shape.head_dim; ++d) elements[d] *= chosen ? 16 : 0.1;
  }
  round_inputs(inputs, dtype);
  return inputs;
}

}  // namespace splash::gpu::testing
