#pragma once
// What the kernels of backward share, by value, and the order in which they run. Compiles without nvcc.
//
//   place_entries    where each row's entries stand when all rows follow one another: one fixed order
//   compute_rows     one pass over the rows: g = <dO, v>, delta, ds, dQ; leaves the entries with p and ds
//   sort_entries     a stable order of the entries by key
//   compute_columns  one pass over the entries in that order: dK and dV
//   compute_dense    rows that are not stored, where forward left some to dense products
//   sum_alpha        dL/dalpha of each head from those of its rows

#include <cstdint>

#include "core/dtype.h"
#include "gpu/engine/memory.h"
#include "gpu/entmax/backward/dense.h"
#include "gpu/entmax/support.h"

namespace splash::gpu::entmax::backward {

constexpr int kRowTile = 32;      // rows of one head that are sorted by length
constexpr int kRowBlock = 8;      // row tiles whose entries are counted together
constexpr int kLongRow = 128;     // a row with more entries gets a block of its own
constexpr int kSortTile = 2048;   // entries a block sorts at a time
constexpr int kDigits = 512;      // values that one sorting pass tells apart, at most
constexpr int kColumnTile = 512;  // sorted entries a block sums at a time
// Of kernels that loop over entries, whose number only the device knows.
constexpr int kMostBlocks = 4096;

// A p > 0.
struct alignas(16) Entry {
  uint32_t key;  // over all key heads
  uint32_t row;  // over all query heads
  float p, ds;   // ds: gradient of <q, k>
};

// An entry on its way to its place by key.
struct alignas(8) Keyed {
  uint32_t key, entry;
};

// A row of a row tile, as the row pass takes them: those with most entries first.
struct alignas(16) RowSlot {
  int64_t pool;          // its first entry in the support
  uint32_t first;        // the same in entries, from the first of its row block
  uint32_t in_tile : 5;  // which row
  uint32_t count : 27;   // up to kLongRow entries, or kLongRow + 1 + the long rows before it in its row block
};

struct LongRow {
  uint32_t row, first;  // entry
};

// The column that a tile of sorted entries does not end.
struct Link {
  uint32_t tail;     // the key, if its first entry is in this tile; else kNoKey
  uint32_t through;  // the tile holds nothing but entries of a key of both its neighbours
};
constexpr uint32_t kNoKey = 0xFFFFFFFFu;

struct Problem {
  const void *q = nullptr, *k = nullptr, *v = nullptr, *d_out = nullptr;
  Support support{};
  const float* alpha = nullptr;
  void *d_q = nullptr, *d_k = nullptr, *d_v = nullptr;
  float* d_alpha = nullptr;
  int64_t batch = 1;
  uint32_t q_len = 1, kv_len = 1, head_dim = 8;
  uint32_t q_heads = 1, group = 1;  // group: query heads a key head serves
  uint32_t alphas = 1;
  uint32_t tiles_a_head = 1;  // row tiles
  int64_t row_tiles = 1;
  uint32_t rows = 1, keys = 1;  // over batch and heads
  float scale = 1;
  Dense dense{};

  // Workspace. Of a 64-bit count, long rows stand in the upper half, entries in the lower one.
  unsigned long long* block_places = nullptr;  // [row blocks]: before each
  unsigned long long* totals = nullptr;        // [1]
  RowSlot* row_slots = nullptr;                // [row_tiles, kRowTile]
  LongRow* long_rows = nullptr;                // [capacity / kLongRow + 1]
  float* row_alphas = nullptr;                 // [rows]: dL/dalpha
  Entry* entries = nullptr;                    // [capacity], row after row
  uint32_t* sort_keys = nullptr;               // [capacity]: of entries
  Keyed* sort_pairs[2] = {};                   // [capacity], where there are two passes; three
  uint32_t* order = nullptr;         // [capacity]: the entries by key; in place of sort_keys if it can
  uint32_t* digit_places = nullptr;  // [sort_tiles, kDigits]
  uint32_t* digit_totals = nullptr;  // [kDigits]
  uint32_t sort_tiles = 1;           // of the capacity
  uint8_t* present = nullptr;        // [keys, to a multiple of 16]: the key has an entry
  Link* links = nullptr;             // [column tiles of the capacity]
  float* partials = nullptr;         // [column tiles, head and tail, 16, lanes of a group]
};

void place_entries(const Problem& p, StreamHandle stream);
void compute_rows(const Problem& p, Dtype dtype, StreamHandle stream);
void sort_entries(const Problem& p, StreamHandle stream);
int sort_passes(uint32_t keys);
void compute_columns(const Problem& p, Dtype dtype, StreamHandle stream);
void sum_alpha(const Problem& p, StreamHandle stream);

}  // namespace splash::gpu::entmax::backward
