#pragma once
// The support of exact entmax attention in device memory: forward writes it, backward reads it. Rows lie in
// any order, so that forward needs no second pass to place them; inside a row the entries' order does not
// change from run to run. 8 bytes an entry, 12 a row. Compiles without nvcc.

#include <cstdint>

namespace splash::gpu::entmax {

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
