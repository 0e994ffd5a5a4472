#pragma once
// Backward of rows with broad supports, which forward did not store, as dense products on tensor cores
// (sm_90a). Compiles without nvcc.
//
//   gather_dense     copies Q and dO of the rows so that those of a head follow one another
//   dense_queries    one pass over the keys: dQ, dL/dalpha, and what the next kernel needs of each row
//   dense_keys       one pass over the rows: what they add to dK and dV
//
// No sum is shared between blocks, so that every run gives the same bits.

#include <cstdint>

#include "core/dtype.h"
#include "gpu/engine/memory.h"
#include "gpu/entmax/support/support.h"

namespace splash::gpu::entmax::backward {

struct BackwardProblem;

constexpr int kDenseTile = 64;  // rows

// What dense_keys needs of a row: z - tau is gain <q, k> + shift, -inf where the row has no p > 0; it sees
// the keys below end (an int's bits); inverse is that of the sum of its weights. The last two are
// dense_queries'.
using Fact = int;
constexpr Fact kShift = 0, kEnd = 1, kDelta = 2, kInverse = 3, kFacts = 4;

struct Dense {
  UnstoredRows from{};
  int reach = 0;                        // query i sees the keys below min(i + reach, kv_len)
  int tiles = 0;                        // kDenseTile rows each, an even number, for all rows of a head
  void *q = nullptr, *d_out = nullptr;  // [heads, tiles, kDenseTile, head_dim]; 0 past a head's last row
  float* facts = nullptr;               // [heads, tiles, kFacts, kDenseTile]
  uint32_t* queues = nullptr;           // [2]: which work of dense_queries and dense_keys is taken
};

// A kernel of one element type; threads and dynamic shared memory of its blocks, which take `rows` queries
// or keys at a time.
struct DenseKernel {
  const void* function = nullptr;
  int threads = 0, shared_bytes = 0, rows = 0, tile_rows = 0;  // tile_rows: that come together
};
DenseKernel dense_queries_of(Dtype dtype, uint32_t head_dim, bool with_alpha);
DenseKernel dense_keys_of(Dtype dtype, uint32_t head_dim);

void gather_dense(const BackwardProblem& p, StreamHandle stream);

// All three. dK and dV are added to what is there, dQ and dL/dalpha of the rows overwritten.
void compute_dense(const BackwardProblem& p, Dtype dtype, StreamHandle stream);

}  // namespace splash::gpu::entmax::backward
