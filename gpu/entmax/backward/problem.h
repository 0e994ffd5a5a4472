#pragma once
// The argument of backward's kernels, passed by value, and the order in which they run. Compiles without
// nvcc.
//
//   place_entries    counts each key's entries: so it knows where each goes when entries are ordered by key
//   compute_rows     one pass over the rows: g = <dO, v>, delta, ds, dQ; writes (row, p, ds) by key
//     compute_dense_rows     those that are not stored, where forward left some to dense products
//   compute_columns  one pass over the keys: dK and dV
//     compute_dense_columns  what rows that are not stored add to them
//   sum_heads        dL/dalpha, and dL/dsink, of each head from those of its rows
//   sum_bias         dL/dbias of each head and distance from the entries' dL/dscore
//
// The rows that may attend to a key are cut into slices. A key's entries lie slice after slice, and inside a
// slice in any order: compute_columns sorts them by row before it sums them, so every sum has one fixed
// order.

#include <algorithm>
#include <bit>
#include <cstdint>

#include "core/divisor.h"
#include "core/dtype.h"
#include "core/round.h"
#include "core/shape.h"
#include "gpu/engine/memory.h"
#include "gpu/entmax/arguments/distance_bias.h"
#include "gpu/entmax/arguments/dropout.h"
#include "gpu/entmax/backward/dense/dense.h"
#include "gpu/entmax/support/support.h"

namespace splash::gpu::entmax::backward {

constexpr int kRowTile = 32;      // rows of one head that are sorted by length
constexpr int kLongRow = 128;     // a row with more entries gets a block of its own
constexpr int kKeyBlock = 1024;   // keys that share a prefix sum of their numbers of entries
constexpr int kColumnTile = 512;  // keys and entries, counted together, that a block takes at a time
constexpr int kLongColumn = 512;  // a key with more entries is summed by blocks of its own
constexpr int kRowWindow = 1024;  // rows that such a block takes at a time
// Blocks that loop, as only the device knows the number of entries: of columns, and of rows with many
// entries.
constexpr int kMostBlocks = 4096, kMostLongRowBlocks = 528;

// How entries are counted: a block takes a window of keys of a key head and a slice of its rows.
constexpr int kCountKeys = 16384;                         // keys of a window
constexpr int kLeastSliceBits = 10, kMostSliceBits = 15;  // a key's entries of a slice are counted in 16 bits
constexpr int64_t kCountBlocks = 144;  // at least so many are wanted: one an SM of a Hopper GPU

// Of a StoredEntry (entry.cuh).
constexpr int64_t entry_bytes(Dtype dtype) {
  return dtype == Dtype::f32 ? 12 : 8;
}

// A row of a row tile, as the row pass takes them: those with most entries first.
struct alignas(16) RowSlot {
  int64_t pool;          // its first entry in the support
  uint32_t in_tile : 5;  // which row of the tile
  uint32_t count : 27;   // entries; kLongRow + 1 stands for more than kLongRow
};

struct Counters {
  uint32_t long_rows, long_columns, column_parts, partials;
  uint32_t key_blocks;  // whose numbers of entries are known
};

// A key with more than kLongColumn entries, whose rows are cut into parts (RowParts of long_columns.cuh).
struct LongColumn {
  uint32_t key, first_part, parts, first_partial;  // first_partial: where parts > 1
  uint32_t summed;                                 // of the parts
};
// The partial sums of all such keys that have several parts. Such a key has n >= 2 * kRowWindow entries, and
// a part at least four fifths of kRowWindow entries of n in the mean, or two thirds and whole windows: at
// most 2 n / kRowWindow parts.
constexpr int64_t most_partials(int64_t capacity) {
  return 2 * capacity / kRowWindow + 1;
}
constexpr int64_t most_column_parts(int64_t capacity) {
  return most_partials(capacity) + capacity / kLongColumn;
}

// The rows that may attend to a key, cut into slices of 1 << bits: at least as many as give kCountBlocks
// blocks, where these are not too short.
struct RowSlices {
  int bits;
  uint32_t count;

  explicit RowSlices(const AttentionShape& s) {
    const int64_t rows = s.group() * s.q_len, heads = ceil_div(s.kv_len, kCountKeys) * s.batch * s.kv_heads,
                  wanted = std::max<int64_t>(1, kCountBlocks / heads);
    bits = std::clamp(static_cast<int>(std::bit_width(static_cast<uint64_t>(rows / wanted))) - 1,
                      kLeastSliceBits, kMostSliceBits);
    count = static_cast<uint32_t>(((rows - 1) >> bits) + 1);
  }
};

struct BackwardProblem {
  const void *q = nullptr, *k = nullptr, *v = nullptr, *d_out = nullptr;
  Support support{};
  const float* alpha = nullptr;
  const float* tau_offsets = nullptr;  // [rows], where thresholds were given
  void *d_q = nullptr, *d_k = nullptr, *d_v = nullptr;
  float* d_alpha = nullptr;
  int64_t batch = 1;
  uint32_t q_len = 1, kv_len = 1, head_dim = 8;
  uint32_t q_heads = 1, group = 1;  // group: query heads a key head serves
  uint32_t alphas = 1;
  uint32_t tiles_a_head = 1;  // row tiles
  int64_t row_tiles = 1;
  uint32_t rows = 1, keys = 1;  // over batch and heads
  uint32_t rows_a_key = 1;      // rows that may attend to a key: group * q_len
  uint32_t slices = 1;          // of them, each of 1 << slice_bits rows
  int slice_bits = kLeastSliceBits;
  int64_t key_stride = 0;         // of key_places
  uint32_t long_parts = 1;        // of a key with many entries, at most
  int p_bits = 31, ds_bits = 32;  // of an entry of 8 bytes; the row takes the others
  float scale = 1;
  Dense dense{};

  // Workspace.
  RowSlot* row_slots = nullptr;        // [row_tiles, kRowTile]
  float* row_alphas = nullptr;         // [rows]: dL/dalpha
  uint32_t* long_rows = nullptr;       // [capacity / kLongRow + 1], in any order
  LongColumn* long_columns = nullptr;  // [capacity / kLongColumn + 1], in any order
  uint32_t* column_parts = nullptr;    // [most_column_parts(capacity)]: of which long column each is
  Counters* counters = nullptr;        // [1]
  uint32_t* key_blocks = nullptr;      // [blocks of keys + 1]: entries before each; last, all
  // [slices, key_stride]: first, how many entries of the slice's rows the key has; then where these
  // begin, relative to its key_blocks.
  uint32_t* key_places = nullptr;
  // [capacity], as support.columns: how many entries of its key and slice were counted before the entry.
  uint16_t* ranks = nullptr;
  void* entries = nullptr;    // [capacity], key after key, slice after slice
  float* partials = nullptr;  // [most_partials(capacity), 16, lanes of a group]

  // What modifies scores and probabilities (row_gradient.cuh).
  const float* tau = nullptr;  // [rows], where scores are capped or there are sinks
  float softcap = 0;           // of scaled scores; 0: none
  DeviceDropout dropout{};
  const float* sinks = nullptr;  // [q_heads]
  float* d_sinks = nullptr;      // [q_heads], where there are sinks; or null
  float* row_sinks = nullptr;    // workspace, [rows] where there are sinks: dL/dsink
  DeviceBias bias{};
  float* d_bias = nullptr;                  // [q_heads, distances], where there is a bias; or null
  float* score_gradients = nullptr;         // workspace, as support.excess: dL/dscore, times the scale
  uint32_t* largest_scores = nullptr;       // workspace, [q_heads]: bits of the largest |score_gradients|
  unsigned long long* bias_sums = nullptr;  // workspace, [q_heads, distances]

  Divisor by_tiles_a_head, by_group, by_kv_len;  // of the numbers of these names
  bool modified() const {
    return softcap > 0 || dropout.seed != nullptr || sinks != nullptr || bias.table != nullptr;
  }
};

void place_entries(const BackwardProblem& p, StreamHandle stream);
void compute_rows(const BackwardProblem& p, Dtype dtype, StreamHandle stream);
void compute_columns(const BackwardProblem& p, Dtype dtype, StreamHandle stream);
void sum_heads(const BackwardProblem& p, const float* of_rows, float* of_heads, StreamHandle stream);
void sum_bias(const BackwardProblem& p, StreamHandle stream);

}  // namespace splash::gpu::entmax::backward
