#pragma once
// A bias that is added to scores and depends on the head and on the distance from query to key alone: T5's
// (Raffel et al. 2020), whose buckets become one entry a distance, and ALiBi's (Press et al. 2022), a slope a
// head times the distance.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/shape.h"

namespace splash {

struct DistanceBias {
  std::vector<double> table{};  // [q_heads, distances], finite, in units of scores; empty: none
  int64_t distances = 0;
  int64_t first =
      0;  // the distance of a head's first entry; its last entry has that of first + distances - 1

  bool any() const { return !table.empty(); }

  // How far key j lies behind query i's place, as a window counts it (core/mask.h): j - (i + kv_len - q_len).
  static int64_t distance(const AttentionShape& shape, int64_t query, int64_t key) {
    return key - query - (shape.kv_len - shape.q_len);
  }

  // Which entry of a head a distance has: before the first the first one, behind the last the last one.
  int64_t entry(int64_t distance) const { return std::clamp<int64_t>(distance - first, 0, distances - 1); }

  // The index in `table` for a pair.
  int64_t index(const AttentionShape& shape, int64_t q_head, int64_t query, int64_t key) const {
    return q_head * distances + entry(distance(shape, query, key));
  }

  // 0 where there is none.
  double of(const AttentionShape& shape, int64_t q_head, int64_t query, int64_t key) const {
    return any() ? table[static_cast<size_t>(index(shape, q_head, query, key))] : 0;
  }

  // Throws InvalidArgument unless `table` fits the shape and is finite.
  void validate(const AttentionShape& shape) const;
};

}  // namespace splash
