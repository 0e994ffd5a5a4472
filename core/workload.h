#pragma once
// Synthetic Q, K and V, seeded, and synthetic rows of scores.

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/mask.h"
#include "core/selection.h"
#include "core/shape.h"
#include "core/tensor.h"

namespace splash {

enum class WorkloadKind {
  gaussian,   // q ~ N(0, variance), k, v ~ N(0, 1): AdaSplash's recipe (arXiv 2502.12082) at variance 6
  clustered,  // keys and queries around shared centres: a query's support is its cluster
  local,      // distance-penalised: scores fall with |i - j|
  sink,       // key 0 scores `gap` above a crowd with spread `spread`: AdaSplash-2's adversarial case
  ties,       // keys drawn from few distinct vectors with small integer entries: exactly equal scores
};

struct Workload {
  WorkloadKind kind = WorkloadKind::gaussian;
  uint64_t seed = 1;
  double query_variance = 6;  // gaussian, clustered, local
  int64_t clusters = 16;      // clustered: centres; ties: distinct keys
  double spread =
      0.2;  // clustered: sd around the centre, relative to the centre; sink: sd of the crowd's scores
  double gap = 1.0;    // sink: score of key 0 above the crowd's mean
  double length = 32;  // local: distance at which the positional score has fallen to 1/e

  void validate() const;  // throws InvalidArgument
};

std::string_view to_string(WorkloadKind kind);
WorkloadKind workload_from_string(std::string_view name);  // throws InvalidArgument

// Makes Q, K and V of that shape for the default scale 1/sqrt(head_dim). Takes O(size); the result does not
// depend on the number of threads.
template <class T>
AttentionInputs<T> make_inputs(const Workload& workload, const AttentionShape& shape);

// One row of n scores with the distribution of a row of the workload's scores, for solver studies: gaussian
// N(0, query_variance), sink, ties (rounded to multiples of 1/2), clustered, local (for the middle query).
std::vector<double> make_score_row(const Workload& workload, int64_t n);

// A shared_keys selection for tiles of `block` queries. Of the n keys that the first query head of a group
// shows to the tile's last query, it draws ceil(share n), one from each of as many equal ranges. Throws
// InvalidArgument unless 0 < share <= 1.
Selection make_shared_keys(const AttentionShape& shape, const Mask& mask, int64_t block, double share,
                           uint64_t seed);

}  // namespace splash
