#pragma once
// Exact entmax attention as its kernels take it, by value. Compiles without nvcc.

#include <cstdint>

#include "gpu/entmax/support.h"

namespace splash::gpu::entmax {

struct Problem {
  const void *q = nullptr, *k = nullptr, *v = nullptr;  // [heads or key heads, length, head_dim]
  void* out = nullptr;                                  // [heads, q_len, head_dim]
  float* tau = nullptr;                                 // [heads, q_len] in units of z, or null
  Support support{};                                    // nothing is stored where columns is null
  const float* alpha = nullptr;                         // [alphas] in device memory
  int alphas = 1;                                       // 1, or q_heads
  int heads = 1, q_heads = 1, group = 1;  // heads = batch * q_heads; group: heads a key head serves
  int q_len = 1, kv_len = 1, head_dim = 64;
  int reach = 0;    // query i sees the keys below min(i + reach, kv_len)
  float scale = 1;  // > 0
  // Rows whose support outgrows the lists, for the row path.
  int* crowded_count = nullptr;
  int64_t* crowded_rows = nullptr;  // [heads * q_len]
};

}  // namespace splash::gpu::entmax
