#pragma once
// A kernel cut or called otherwise than it was measured: what is counted of it then, without its declaration.

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

// Why the kernel's work does not follow from its tiles; empty where it does. It follows where one kernel has
// a block for each tile of queries (or blocks that stay and take tile after tile), and asks L2 for the rows
// once and for the keys and values of all visible tiles.
std::string why_not_cut(const KernelCase& kernel);

// Blocks of the kernel with another number of batch entries: in proportion, or, where blocks stay and take
// tile after tile of queries, as many as now, unless there are fewer tiles.
int64_t blocks_with_batch(const KernelCase& kernel, int64_t batch);

// Blocks and products: as many as the tiles then are, padding included. L2: keys and values are read once a
// tile of queries. Shared memory: in proportion to a tile of queries and `stages` tiles of keys and values.
// Threads: in proportion to tile_q, a warp at least and 1024 at most. Registers and DRAM stay. Throws
// InvalidArgument where a number is not positive, or the kernel is to be cut and why_not_cut() tells why not.
KernelCase changed(const KernelCase& kernel, const Change& change);

}  // namespace splash::analysis
