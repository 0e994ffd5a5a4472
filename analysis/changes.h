#pragma once
// Counts of a measured kernel after a change of its tiles, stages, launches or batch entries. They follow
// from the recorded counts, without the kernel's declaration.

#include <optional>

#include "analysis/roofline.h"

namespace splash::analysis {

struct Change {
  std::optional<int64_t> tile_q{}, tile_k{};  // queries and keys that a block works on at a time
  std::optional<int> stages{};                // tiles of keys and values in flight
  std::optional<int> launches{};              // kernels per call
  std::optional<bool> replayed{};             // calls replayed as a CUDA graph
  int64_t batch = 1;                          // factor on the number of batch entries

  bool cuts() const { return tile_q || tile_k || stages; }
};

// Whether the kernel already is what the change would make of it.
bool changes_nothing(const KernelCase& kernel, const Change& change);

// Why the kernel's work does not follow from its tiles; empty if it does. It follows for a call of one kernel
// that has one block per tile of queries (or persistent blocks) and asks L2 once for queries and results, and
// for the keys and values of all visible tiles.
std::string why_not_cut(const KernelCase& kernel);

// The kernel with `batch` batch entries, at least 1. Counts and blocks, also of its launches, are in
// proportion. The number of persistent blocks stays, unless there are fewer tiles than that.
KernelCase with_batch(KernelCase kernel, int64_t batch);

// The kernel after the change. Blocks and products follow the new tiles, padding included. L2 delivers keys
// and values once per tile of queries. Shared memory is proportional to one tile of queries plus `stages`
// tiles of keys and values; threads are proportional to tile_q (32 to 1024). Registers and DRAM bytes do not
// change. Throws InvalidArgument if a number is not positive, or if the change cuts a kernel for which
// why_not_cut() gives a reason.
KernelCase changed(const KernelCase& kernel, const Change& change);

}  // namespace splash::analysis
