#pragma once
// Backward of the dense rows: rows with broad supports, which forward did not store, as dense products on
// tensor cores (sm_90a). Compiles without nvcc.
//
//   gather_dense     copies Q and dO of the dense rows so that those of a head follow one another
//   dense_queries    one pass over the keys: dQ, dL/dalpha, and what the next kernel needs of each row
//   dense_keys       one pass over the rows: what they add to dK and dV
//
// No two blocks add to the same sum, so every run gives the same bits.

#include <cstdint>

#include "core/dtype.h"
#include "gpu/engine/memory.h"
#include "gpu/entmax/arguments/mask_tables.h"
#include "gpu/entmax/support/support.h"

namespace splash::gpu::entmax::backward {

struct BackwardProblem;

constexpr int kDenseTile = 64;  // rows

// What dense_keys needs of a row. kShift: z - tau = gain <q, k> + shift; -inf where the row has no p > 0.
// kBegin, kEnd: the row sees the keys from begin to below end (ints' bits). kDelta: delta of
// row_gradient.cuh. kInverse: 1 / sum of its weights. gather_dense writes the first three, dense_queries the
// last two.
using Fact = int;
constexpr Fact kShift = 0, kBegin = 1, kEnd = 2, kDelta = 3, kInverse = 4, kFacts = 5;

struct Dense {
  UnstoredRows from{};
  // Which keys a row sees (arguments/key_range.h), as in ForwardProblem.
  DeviceMask mask{};
  int reach = 0, window = 0, kv_len = 1;
  bool has_ranges() const { return window > 0 || mask.ranges != nullptr; }
  int tiles = 0;                        // tiles of kDenseTile rows for all rows of a head, an even number
  void *q = nullptr, *d_out = nullptr;  // [heads, tiles, kDenseTile, head_dim]; 0 past a head's last row
  float* facts = nullptr;               // [heads, tiles, kFacts, kDenseTile]
  uint32_t* queues = nullptr;           // [2]: the next work item of dense_queries and of dense_keys
  // Of the kernel that is launched: heads whose work items are neighbours, as many as have in L2 what they
  // stream. Those that stream most come first: heads one after the other would leave a tail at the end.
  int heads_together = 1;
};

// A kernel of one element type, with the threads and dynamic shared memory of a block. A block takes `rows`
// queries or keys per work item.
struct DenseKernel {
  const void* function = nullptr;
  int threads = 0, shared_bytes = 0, rows = 0, tile_rows = 0;  // tile_rows: per TMA load
};
// ranges: for problems with Dense::has_ranges.
DenseKernel dense_queries_of(Dtype dtype, uint32_t head_dim, bool with_alpha, bool ranges);
DenseKernel dense_keys_of(Dtype dtype, uint32_t head_dim, bool ranges);

void gather_dense(const BackwardProblem& p, StreamHandle stream);

// Enqueues the first two kernels, behind compute_rows: they overwrite dQ and dL/dalpha of the dense rows.
void compute_dense_rows(const BackwardProblem& p, Dtype dtype, StreamHandle stream);
// Enqueues the third, behind compute_columns: it adds to what dK and dV hold.
void compute_dense_columns(const BackwardProblem& p, Dtype dtype, StreamHandle stream);

}  // namespace splash::gpu::entmax::backward
