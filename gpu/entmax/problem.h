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
  RowList rows{};   // what is to be computed
  // Rows that outgrow a kernel's lists. Of each head row_mask_words words; bit r of word i is row 32 i + r.
  uint32_t* crowded_masks = nullptr;  // rows here and there, left to the kernel with long lists
  uint32_t* broad_masks =
      nullptr;              // rows among many such, and those that outgrow long lists: the dense path's
  float* bounds = nullptr;  // [heads, q_len]: of those rows, at most tau in units of <q, k>
  // See prepare.h.
  void* half_keys = nullptr;  // [key heads, kv_len, head_dim] in float16; null where k itself is
  float* errors = nullptr;    // [key heads, kv_len / kErrorKeys, rounded up]
  // See pick.h. segment: keys of which `picks` are picked; 0: none are.
  int segment = 0, picks = 0;
  // See tuning.h; heads_together is at least 1 here.
  int sampled_keys = 4096, heads_together = 1, broad_samples = 24;
  void* picked = nullptr;  // [key heads, kv_len / segment * picks, head_dim] in float16
};

constexpr unsigned kMostKeys = 1u << 28;  // that Hopper's path takes
constexpr int kErrorKeys = 128;           // keys that share an error

// Of a head, 32 rows a word; what is beyond the last row is undefined.
constexpr int row_mask_words(int q_len) {
  return (q_len + 31) / 32;
}

}  // namespace splash::gpu::entmax
