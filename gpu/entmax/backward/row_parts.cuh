#pragma once
// How the rows of a key with many entries are cut into parts, and how such keys are listed.

#include "gpu/entmax/backward/problem.h"

namespace splash::gpu::entmax::backward {

// The rows that may attend to a key with this many entries, cut into parts of some kRowWindow entries, as if
// these were spread evenly: whole windows of kRowWindow rows, at least one. At most long_parts parts; one
// where there are fewer than 2 * kRowWindow entries.
struct RowParts {
  uint32_t windows, count;  // per part; parts

  __device__ RowParts(const BackwardProblem& p, uint32_t entries) {
    const uint32_t all = (p.rows_a_key + kRowWindow - 1) / kRowWindow,
                   least = (all + p.long_parts - 1) / p.long_parts;
    const auto share = static_cast<uint32_t>((uint64_t{2} * all * kRowWindow / entries + 1) / 2);
    windows = entries < 2 * kRowWindow ? all : min(max(max(share, least), 1u), all);
    count = (all + windows - 1) / windows;
  }
};

// By one thread.
__device__ __forceinline__ void list_long_column(const BackwardProblem& p, uint32_t key, uint32_t entries) {
  const uint32_t parts = RowParts(p, entries).count, column = atomicAdd(&p.counters->long_columns, 1u),
                 first_part = atomicAdd(&p.counters->column_parts, parts),
                 first_partial = parts > 1 ? atomicAdd(&p.counters->partials, parts) : 0;
  p.long_columns[column] = {key, first_part, parts, first_partial, 0};
  for (uint32_t i = 0; i < parts; ++i) p.column_parts[first_part + i] = column;
}

}  // namespace splash::gpu::entmax::backward
