#pragma once
// Counts of a measured kernel with other tiles, stages, launches or batch entries. They follow from the
// recorded counts; the kernel's declaration is not needed.

#include <optional>

#include "analysis/roofline.h"

namespace splash::analysis {

struct Change {
  std::optional<int64_t> tile_q{}, tile_k{};  // queries and keys that a block works on at a time
  std::optional<int> stages{};                // tiles of keys and values in flight
  std::optional<int> launches{};              // kernels a call
  std::optional<bool> replayed{};             // as a graph
  int64_t batch = 1;                          // times as many batch entries

  bool cuts() const { return tile_q || tile_k || stages; }
};

// Whether the kernel already is as the change would have it.
bool changes_nothing(const KernelCase& kernel, const Change& change);

// Why the kernel's work does not follow from its tiles; empty where it does. It follows for a call of one
// kernel with one block per tile of queries (or persistent blocks), which asks L2 for queries and results
// once and for the keys and values of all visible tiles.
std::string why_not_cut(const KernelCase& kernel);

// Blocks of the kernel with `batch` times as many batch entries: in proportion. Persistent blocks stay as
// many as they are, unless there are fewer tiles.
int64_t blocks_with_batch(const KernelCase& kernel, int64_t batch);

// The kernel after the change. Blocks and products follow the new tiles, padding included. L2 delivers keys
// and values once per tile of queries. Shared memory is proportional to one tile of queries plus `stages`
// tiles of keys and values, threads to tile_q (32 to 1024). Registers and DRAM bytes do not change. Throws
// InvalidArgument where a number is not positive, or where the change cuts a kernel for which why_not_cut()
// gives a reason.
KernelCase changed(const KernelCase& kernel, const Change& change);

}  // namespace splash::analysis
