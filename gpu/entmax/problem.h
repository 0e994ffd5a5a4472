#pragma once
// The forward kernels' argument, passed by value. Compiles without nvcc.

#include <cstdint>

#include "core/host_device.h"
#include "gpu/entmax/arguments/mask_tables.h"
#include "gpu/entmax/support/support.h"

namespace splash {
struct AttentionSpec;
}

namespace splash::gpu::entmax {

struct ForwardArguments;

// Memory for lists that outgrow shared memory (hopper/screen/spill.cuh), a slot for each warp that may be
// resident.
struct SpillSlots {
  void* pairs = nullptr;      // [count, pairs_per_lane, 32 lanes] pairs of int32
  uint32_t* taken = nullptr;  // [count]: 1 where a warp holds the slot
  int count = 0, pairs_per_lane = 0;
};

struct ForwardProblem {
  const void *q = nullptr, *k = nullptr, *v = nullptr;  // [heads or key heads, length, head_dim]
  void* out = nullptr;                                  // [heads, q_len, head_dim]
  float* tau = nullptr;                                 // [heads, q_len] in units of z, or null
  Support support{};                                    // nothing is stored where columns is null
  const float* alpha = nullptr;                         // [alphas] in device memory
  int alphas = 1;                                       // 1, or q_heads
  int heads = 1, q_heads = 1, group = 1;                // heads = batch * q_heads; group: heads per key head
  int q_len = 1, kv_len = 1, head_dim = 64;
  int reach = 0;    // query i sees the keys below min(i + reach, kv_len)
  float scale = 1;  // > 0
  int k_keep = 0;   // rows keep so many of their largest scores; 0: all. See kept_keys
  RowList rows{};   // the rows that a kernel computes, where it does not compute all
  uint32_t* next_share =
      nullptr;  // shares of rows that blocks of Hopper's dense kernel took beside their first

  // Rows that the screening kernel defers to the dense path.
  uint32_t* broad_masks = nullptr;  // row_mask_words words per head; bit r of word i is row 32 i + r
  float* bounds = nullptr;          // [heads, q_len]: of deferred rows, a lower bound of tau, in <q, k>
  // Rows that are left to backward's dense products: those that are deferred, and those whose entries cost
  // backward more (support/unstored.h); laid out as broad_masks. Null: every row is stored.
  uint32_t* unstored_masks = nullptr;

  // Hopper's path, written by its first kernel: see hopper/prepare/prepare.h and high_norm.h.
  void* half_keys = nullptr;  // [key heads, kv_len, head_dim] in float16; null where k itself is
  float* errors = nullptr;    // [key heads, kv_len / kErrorKeys, rounded up]
  SpillSlots spill{};
  int segment = 0;  // keys per segment; 0: no keys are chosen by their norms
  int high_norm_per_segment = 0;

  // See tuning.h; heads_together is at least 1 here.
  int sampled_keys = 4096, heads_together = 1;
  void* high_norm_keys =
      nullptr;  // [key heads, kv_len / segment * high_norm_per_segment, head_dim] in float16

  // What else hides keys (arguments/key_range.h). Hopper's path takes no positions.
  DeviceMask mask{};
  int window = 0;  // without mask.ranges: of the keys below i + reach query i sees the last so many; 0: all
  int first_block = 0;  // of kErrorKeys keys: no row sees a key before

  // Whether a row may see fewer keys than those below its end.
  SPLASH_HOST_DEVICE bool has_ranges() const { return window > 0 || mask.ranges != nullptr; }
};

constexpr unsigned kMostKeys = 1u << 28;  // that Hopper's path takes
constexpr int kErrorKeys = 128;           // keys that share an error

// 32 rows of a head per word; bits beyond the last row are undefined.
constexpr int row_mask_words(int q_len) {
  return (q_len + 31) / 32;
}

// What a causal mask and a window come to: query i sees the keys below min(i + reach, kv_len), of those below
// i + reach the last `window` (0: all).
struct Band {
  int reach = 0, window = 0;
};
Band band_of(const AttentionSpec& spec);

// The k_keep that all rows have, where it is less than kv_len; 0: rows keep all keys, or heads differ.
int kept_keys(const AttentionSpec& spec);

// The most keys that a row sees.
int64_t most_visible(const AttentionSpec& spec);

// Keys that Hopper's sampling pass takes of a block. Of N Gaussian keys the screen lists about 8 N / samples.
// Where a row sees more than 16384, `tuned` grows: by the root of N, for that costs least together, and from
// 262144 keys on in proportion, or lists would outgrow their memory. In a window as many as a row sees,
// about: a block of rows sees up to one tile more, whose keys few of its rows see; to sample it would take
// another iteration.
int sampled_keys(const AttentionSpec& spec, int tuned);

// Fills in all but the pointers into the workspace.
ForwardProblem problem_of(const AttentionSpec& spec, const ForwardArguments& arguments);

}  // namespace splash::gpu::entmax
