#pragma once
// The support: for each query row, the keys with p > 0. Exact entmax attention's forward leaves it in device
// memory for backward; also as a self-describing buffer (store.h) and as a sparse matrix (csr.h). The kernel
// that computes a row writes its offset and count, and its entries to a range that allocate.cuh gave to that
// warp alone; gather_rows (schedule/gather.h) marks the rows that are left to dense products. Rows lie in any
// order, so forward needs no second pass to place them. Inside a row the order of the entries is the same in
// every run. 8 bytes per entry, 12 per row. Compiles without nvcc.

#include <cstdint>

namespace splash::gpu::entmax {

// Rows that an earlier kernel deferred, listed by gather_rows (schedule/gather.h). Where queries is null, all
// rows.
struct RowList {
  const int* queries = nullptr;  // [heads, q_len]: each head's rows, rising
  const int* counts = nullptr;   // [heads]
};

// Rows whose support is broad and therefore not stored: backward computes them as dense products, from tau.
// Of wider heads than kMostUnstoredHeadDim all rows are stored.
constexpr int64_t kMostUnstoredHeadDim = 128;
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
