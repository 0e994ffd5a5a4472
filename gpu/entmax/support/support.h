#pragma once
// What exact entmax attention's forward leaves in device memory for backward; also as a self-describing
// buffer (store.h) and as a sparse matrix (csr.h). Forward alone writes it: each row's offset and count by
// the kernel that computes the row, its entries in a range that allocate.cuh gave to that warp alone. Rows
// lie in any order, so that forward needs no second pass to place them; inside a row the entries' order does
// not change from run to run. 8 bytes an entry, 12 a row. Compiles without nvcc.

#include <cstdint>

namespace splash::gpu::entmax {

// Rows that an earlier kernel deferred, listed by gather_rows (schedule/gather.h); where queries is null, all
// rows.
struct RowList {
  const int* queries = nullptr;  // [heads, q_len]: each head's rows, rising
  const int* counts = nullptr;   // [heads]
};

// Rows whose support is broad and not stored: backward computes them as dense products, from tau.
struct UnstoredRows {
  RowList rows{};              // where queries is null, there are none
  const float* tau = nullptr;  // [heads, q_len]
};

// Addresses in device memory; rows = batch * q_heads * q_len.
struct Support {
  int64_t capacity = 0;  // entries that columns and excess hold
  unsigned long long* used =
      nullptr;  // [1]: entries that forward wanted to store; more than capacity: some rows are not stored
  int64_t* offsets = nullptr;  // [rows]: the row's first entry, or -1 where the row is not stored
  int32_t* counts = nullptr;   // [rows]: entries of the row: keys with p > 0
  int32_t* columns = nullptr;  // [capacity]: key, from 0 in each head
  float* excess = nullptr;     // [capacity]: z - tau > 0; p = excess^(1/(alpha-1)) / its row's sum
};

}  // namespace splash::gpu::entmax
