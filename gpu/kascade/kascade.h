#pragma once
// Kascade in a GPU's memory (arXiv 2512.16391), for softmax. A tile is 32 queries that follow one another x
// the query heads that share a key head. An anchor layer finds the keys that each tile shares: its own, and
// those with the largest sums of the tile's probabilities. The layers behind it attend to these alone.
// sm_90a; head_dim in multiples of 8 up to 256. Compiles without nvcc.
//
//   if (!not_taken(spec, dtype, budget.tile, capability).empty()) …
//   find_keys(spec, dtype, {.q = q, .k = k, .counts = counts, .keys = keys, …});  // an anchor
//   attend_to_keys(spec, dtype, {.q = q, .k = k, .v = v, .out = out, .keys = keys, …});
//
// spec: its shape, scale and causal mask, which meets at the end; its selection is not looked at. Tensors are
// contiguous and 16-byte aligned: q, out [batch, q_heads, q_len, head_dim], k, v [batch, kv_heads, kv_len,
// head_dim]. Lists: [batch, kv_heads, tiles, most] keys, rising, kv_len behind the last one. Counts: [batch,
// kv_heads, tiles], at most `most`; KascadeBudget::keys_of_tiles() says them, of the keys that a sequence
// has. Calls only launch kernels on the current device; they throw Unsupported with not_taken()'s words, and
// DeviceError.
//
// Steps of decoding take keys and values in pages, too (Pages). Then k and v are the pools, and kv_len is the
// room that a sequence has in its pages.

#include <string>

#include "core/attention_spec.h"
#include "core/dtype.h"
#include "gpu/engine/memory.h"

namespace splash::gpu::kascade {

// What keeps the kernels from such a problem, in words ("a head_dim of 264"); empty where nothing does.
// capability: 90 for 9.0.
std::string not_taken(const AttentionSpec& spec, Dtype dtype, int64_t tile, int capability);
std::string not_taken_here(const AttentionSpec& spec, Dtype dtype, int64_t tile);  // of the current device

// Rows of a key head (query heads x queries) up to which a step's kernels take a call; and keys in 8 bits
// that they load at once.
constexpr int kMostStepRows = 32, kKeyGroup = 16;

// Where the keys of sequences lie in pools of pages, as a paged cache has them (gpu/decode/problem.h). In
// device memory, so that they are read when a kernel runs. Pools of keys and of values are laid out alike.
struct Pages {
  const int32_t* table = nullptr;    // [batch, kv_len / page_size]; null: k and v are no pools
  const int32_t* lengths = nullptr;  // [batch]: keys of each sequence, the step's own among them
  // From one to the next, in rows of head_dim numbers.
  int64_t page_rows = 0, token_rows = 0, head_rows = 0;
  int pages = 0, page_size = 0;  // of the pool; a multiple of kKeyGroup. A page that is none is another one
};

struct FindArguments {
  const void *q = nullptr, *k = nullptr;
  const int32_t* counts = nullptr;
  int32_t* keys = nullptr;
  int64_t most = 0;
  // [batch], below kv_len: the first key that a sequence sees; those before it are padding, whatever is in
  // them. Null: 0. Only where a key head has few rows; elsewhere Unsupported.
  const int32_t* starts = nullptr;
  // Where v is given, out becomes attention to all keys, by the scores of k; k8 is not looked at. As pages,
  // which come without starts and k8, only where a key head has few rows; elsewhere Unsupported.
  const void* v = nullptr;
  void* out = nullptr;
  Pages pages{};
  // The same keys as of quantize_keys, or null. Where a key head has few rows, as in a step of decoding
  // (q_len <= 32, and at most 32 rows: query heads of a key head x q_len), they are read in place of k, which
  // halves what is read: the choice is by the scores of rounded keys, their probabilities rounded to 2^-9.
  // Elsewhere they are not looked at.
  const int8_t* k8 = nullptr;
  const float* k8_scales = nullptr;
  int64_t k8_pitch = 0;
  // [batch, q_heads, q_len]: of each row log(sum of exp(scaled score)), -inf without keys, as dense attention
  // leaves it. Null: a pass over the scores finds it. Not read where a key head has few rows.
  const float* normalizers = nullptr;
  void* workspace = nullptr;  // 256-byte aligned, contents undefined
  int64_t workspace_bytes = 0;
  StreamHandle stream = nullptr;
};

// Of the workspace of find_keys: what lets the GPU be full, and the least, with which it takes one tile after
// another. attends: whether v is given.
int64_t find_bytes(const AttentionSpec& spec, bool attends = false);
int64_t least_find_bytes(const AttentionSpec& spec, bool attends = false);

// Two dense passes over the scores (each row's normaliser, then the sums), or one where normalisers are given
// or a key head has few rows, and a selection: exact, but for k8. Among equal sums the lower key is kept. A
// row without keys, or with NaN, chooses none.
void find_keys(const AttentionSpec& spec, Dtype dtype, const FindArguments& arguments);

struct QuantizeArguments {
  const void* k = nullptr;     // [batch, kv_heads, kv_len, head_dim]
  int8_t* k8 = nullptr;        // [batch, kv_heads, pitch, head_dim]: k is scale x k8, rounded to nearest even
  float* k8_scales = nullptr;  // [batch, kv_heads, pitch]: largest |k| / 127; NaN of a key that is not finite
  int64_t pitch = 0;           // keys that there is room for: a multiple of 16, at least kv_len
  int64_t begin = 0;           // the first key that is written; those before it are left as they are
  StreamHandle stream = nullptr;
};

// Keys [begin, kv_len) in 8 bits, for find_keys. Of the shape batch, kv_heads, kv_len and head_dim count.
// Throws Unsupported with not_taken()'s words, InvalidArgument for the pitch.
void quantize_keys(const AttentionSpec& spec, Dtype dtype, const QuantizeArguments& arguments);

struct ReuseArguments {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void* out = nullptr;
  const int32_t *counts = nullptr, *keys = nullptr;
  int64_t most = 0;
  const int32_t* heads =
      nullptr;  // [kv_heads]: of the anchor, whose lists each key head reads; null: its own
  Pages pages{};
  void* workspace = nullptr;  // reuse_bytes(), 256-byte aligned, contents undefined
  StreamHandle stream = nullptr;
};

int64_t reuse_bytes(const AttentionSpec& spec, int64_t most);

// Each query attends to those of its tile's keys that it sees. One that sees none gives a zero row.
void attend_to_keys(const AttentionSpec& spec, Dtype dtype, const ReuseArguments& arguments);

}  // namespace splash::gpu::kascade
