#pragma once
// What the kernels of decode share: the paged cache, the step's tensors, and the workspace.

// A unit is what one team of blocks (team.cuh) works on: a sequence, a key head, and up to eight rows (query
// heads of the key head times queries; row = query head within the group * q_len + query). Its keys are, in
// order:
//
//   head  keys 0 ... 15, scored exactly at the start
//   runs  of full pages, one per warp of the team: a warp holds the upper scores of its run's first tiles in
//         shared memory until the best of them have given a bound; it screens the rest against that
//   tail  the last 16 keys and what else their pages hold, scored exactly at the start
//
// Head, tail and each run list the keys that may be in the support in a segment of their own, so nothing
// depends on timing: the segments in their order list keys in key order. Compiles without nvcc.

#include <cstdint>

#include "core/dtype.h"
#include "core/host_device.h"

namespace splash::gpu::decode {

constexpr int kBarrierWords = 32;  // of a unit: a line of memory
constexpr int kRows = 8;           // of a unit, at most: the columns of mma.m16n8k16
constexpr int kWarps = 8;          // of a block
constexpr int kMostTeam = 64;      // blocks of a unit, at most
constexpr int kHeadKeys = 16;
constexpr int kTailKeys = 16;  // as many as a step has queries: all rows see the keys before them
constexpr int kMostPage = 256;
constexpr int kHeldPages = 2048;  // of a sequence, in shared memory
constexpr int kMostBest = 8;      // keys that a warp proposes per row, to raise the row's bound

// StepInputs::recent, of a sequence and key head: a state (recent.cuh), and keys. A unit that has all rows of
// its key head uses it.
constexpr int kRecentKeys = 128, kRecentStateWords = 4, kRecentWords = kRecentStateWords + kRecentKeys;
// Of these, the keys of each query head.
SPLASH_HOST_DEVICE constexpr int recent_keys_of(int group) {
  return group <= 4 ? 32 : kRecentKeys / group;
}

// Keys above the last bounds that a block holds in shared memory, of all its rows.
// With the sums of their values' parts they take 64 KB at head_dim 128: with more, and without copies, L1 has
// no room for the keys that are on their way.
SPLASH_HOST_DEVICE constexpr int listed_keys(int head_dim) {
  return head_dim <= 64 ? 3072 : 6144;
}

// Keys that a row may keep for its values to be added one key after the other: what a list holds of each row
// where it is shared by all. Rows that keep more take the dense pass (dense.cuh).
SPLASH_HOST_DEVICE constexpr int most_listed(int head_dim) {
  return listed_keys(head_dim) / kRows;
}
constexpr int kChunkKeys = 1024;  // of the dense pass

// Keys that a warp screens at a time, of one page.
SPLASH_HOST_DEVICE constexpr int tile_keys_of(int bits) {
  return bits == 8 ? 32 : 64;
}

// Blocks of a step's kernel that a multiprocessor holds, at most.
SPLASH_HOST_DEVICE constexpr int blocks_per_multiprocessor(int head_dim) {
  return head_dim <= 64 ? 3 : head_dim <= 128 ? 2 : 1;
}

// Short steps (short_step.cuh): rows of a unit, warps of a block, kWarps or these where there are many units;
// keys of a sequence, at most; and blocks of a multiprocessor.
constexpr int kShortRows = 4, kFewWarps = 4;
SPLASH_HOST_DEVICE constexpr int short_keys(int warps) {
  return 256 * warps;
}
SPLASH_HOST_DEVICE constexpr int short_blocks_per_multiprocessor(int head_dim, int warps) {
  return (head_dim <= 128 ? 16 : 8) / warps;
}

// The same of the dense pass.
SPLASH_HOST_DEVICE constexpr int dense_blocks_per_multiprocessor(int head_dim) {
  return head_dim <= 128 ? 2 : 1;
}

// Keys or values: [pages, page_size, kv_heads, head_dim] or any order of the first three; strides in
// elements, multiples of 8, of float8 multiples of 16. The base is 16-byte aligned.
struct PagedTensor {
  const void* data = nullptr;
  int64_t page_stride = 0, token_stride = 0, head_stride = 0;
};

struct Cache {
  Dtype dtype = Dtype::bf16;  // bf16 or f16: of queries and outputs, of new keys and values, and of the cache
                              // itself where it is not fp8
  int pages = 0, page_size = 0, kv_heads = 0, head_dim = 0;
  PagedTensor keys{}, values{};
  int bits = 0;                // of the low-bit copy: 4, 8, or 0 for none
  uint8_t* low_bit = nullptr;  // [pages, kv_heads, LowBitLayout::bytes()]
  bool fp8 = false;            // keys and values are float8_e4m3fn; such a cache has no copy: it is as small
  const float *key_scale = nullptr, *value_scale = nullptr;  // of fp8, [1] in device memory: what stored
                                                             // numbers are multiplied by; null: 1
};

// The pages of each sequence. An entry below 0 is a hole: its keys do not exist.
struct PageTable {
  const int32_t* pages = nullptr;    // [batch, width]
  const int32_t* lengths = nullptr;  // [batch]: keys of each sequence, with the step's own
  int batch = 0, width = 0;
};

// Rows: [batch, q_len, q_heads, head_dim] or any order of the first three, strides in elements, multiples
// of 8.
struct RowTensor {
  void* data = nullptr;
  int64_t batch_stride = 0, query_stride = 0, head_stride = 0;
};

// What the caller gets, in device memory, contiguous: [batch, q_heads, q_len] but for counts. Each may be
// null.
struct StepOutputs {
  float* tau = nullptr;        // z = (alpha - 1) scale <q, k>; +inf: the row has no key; NaN: bad input
  float* maximum = nullptr;    // largest z; -inf: the row has no key
  int32_t* support = nullptr;  // keys with p > 0
  int32_t* counts = nullptr;   // [units, 4]: keys screened, candidates, keys scored exactly after it, 1 if
                               // rows took the dense pass
};

// The keys that a sequence's ranges hold. Lengths are known on the device alone.
struct Ranges {
  int length, tail, tile_keys;  // tail: its first key, a page's first
  int first_tile, tiles;        // screened: [first_tile, tiles)

  // first_key: the first that a row's window holds; page_shift: log2 of the page size.
  SPLASH_HOST_DEVICE Ranges(int keys, int first_key, int page_shift, int bits)
      : length(keys),
        tail(keys > kTailKeys ? (keys - kTailKeys) >> page_shift << page_shift : 0),
        tile_keys(1 << page_shift < tile_keys_of(bits) ? 1 << page_shift : tile_keys_of(bits)),
        first_tile(0),
        tiles(tail / tile_keys) {
    first_tile = first_key < tail ? first_key / tile_keys : tiles;
  }
};

// The segments of a unit's list: head, runs, tail.
struct Segments {
  int runs = 0;      // how many
  int capacity = 0;  // of each: all of a run's keys

  SPLASH_HOST_DEVICE int count() const { return runs + 2; }
  SPLASH_HOST_DEVICE int first(int segment) const {  // place in the list
    return segment == 0 ? 0 : kHeadKeys + (segment - 1) * capacity;
  }
  SPLASH_HOST_DEVICE int total() const { return first(runs + 1) + kTailKeys + kMostPage; }
};

// A key with a large upper score that a warp has seen for a row; -1: none.
struct Best {
  float upper;
  int key;
};

// What a segment holds of a row: its largest exact score, and how many are above the row's last bound.
struct RowFound {
  float largest;
  int above;
};

// f = sum of u_+^beta at a shift (solve.cuh), over some of a row's keys.
struct RowSums {
  int64_t weights = 0;  // f in units of 2^-40; from 2 on it may be too small
  float approximate = 0, slope = 0;
  int32_t support = 0;  // keys with u > 0

  SPLASH_HOST_DEVICE void add(const RowSums& other) {
    weights += other.weights;
    approximate += other.approximate;
    slope += other.slope;
    support += other.support;
  }
};

// The dense pass: how many blocks a team has, how many teams there are, and what each has of the workspace
// (DenseRoom, dense_values.cuh).
struct Dense {
  int team = 1, teams = 1;
  int chunks = 0;  // of kChunkKeys keys, of the longest sequence
  float *scores = nullptr, *sums = nullptr, *largest = nullptr, *weights = nullptr;
  uint32_t* masks = nullptr;
  RowSums* asked = nullptr;
  int32_t* keys = nullptr;
};

// The kernels' argument, passed by value.
struct Step {
  Cache cache{};
  PageTable table{};
  RowTensor q{}, out{};
  StepOutputs outputs{};
  const float *alpha = nullptr, *scale = nullptr;  // [1] or [q_heads], in device memory
  int alphas = 1, scales = 1;
  uint32_t* broad = nullptr;  // StepInputs::broad
  int32_t* recent = nullptr;  // StepInputs::recent
  int q_heads = 1, q_len = 1;
  int window = 0, sinks = 0;  // a row sees its last `window` keys and the first `sinks`; window 0: all keys

  int group = 1, rows = 1, row_tiles = 1,
      units = 1;           // rows: group * q_len; units: batch * kv_heads * row_tiles
  int listed_rows = 2;     // rows of a unit, rounded up to an even number
  int page_shift = 0;      // log2 of the page size
  int team = 1;            // blocks per unit, a power of two up to 64
  bool is_cluster = true;  // a team; else its blocks meet at barriers
  int best_of_run = kMostBest;
  int least_tiles = 1;         // per warp, before another block of the team joins
  int held_tiles = 0;          // of a run, from its first on, whose upper scores its warp holds
  int held_pages = 0;          // of the table, in shared memory: all or none
  int least_shared_bytes = 0;  // of a block, so that few share a multiprocessor
  int short_warps = 0;         // of a block of short_kernel; 0: the step is not short
  bool screens_ahead = false;  // few do: each has as many keys on their way as it has room for, else half

  // Workspace
  uint32_t* barriers = nullptr;  // [units, kBarrierWords], where teams are no clusters: the first two words
                                 // of each are for sync_blocks() and comes_last()
  Segments segments{};
  int32_t* counts = nullptr;  // [units, segments]: keys listed
  int32_t* kept = nullptr;    // [units, segments]: keys left after the last bound, scored exactly
  int32_t* keys = nullptr;    // [units, segments.total()]
  float* scores = nullptr;    // [units, segments.total(), listed_rows]: upper scores of keys; later, of each
                              // row, exact scores above its last bound, a segment's from its first place on,
  int32_t* row_keys = nullptr;     // and their keys
  RowFound* found = nullptr;       // [units, segments, kRows]
  Best* best = nullptr;            // [units, kRows, 2 (of held tiles, of the rest), runs, best_of_run]
  uint32_t* overflowed = nullptr;  // [units]: the rows, as bits, that are left to the dense pass; and
                                   // bits of recent.cuh
  Dense dense{};
};

// Of a sequence with so many keys.
SPLASH_HOST_DEVICE Ranges ranges_of(const Step& p, int keys) {
  const int first = p.window > 0 ? keys - (p.q_len - 1) - p.window : 0;
  return {keys, first > 0 ? first : 0, p.page_shift, p.cache.bits};
}

// Shared memory of a block behind what is as large for every step: exact scores of head and tail, of each
// row; the upper scores of each warp, a byte a key and row; pages.
SPLASH_HOST_DEVICE int sample_keys(const Step& p) {  // at least as many as head and tail hold
  return kHeadKeys + kTailKeys + (1 << p.page_shift);
}
SPLASH_HOST_DEVICE int sample_bytes(const Step& p) {
  return p.listed_rows * sample_keys(p) * 4;
}
SPLASH_HOST_DEVICE int held_rows(const Step& p) {
  return p.listed_rows <= 4 ? 4 : 8;
}
SPLASH_HOST_DEVICE int held_score_bytes(const Step& p) {  // of a warp
  return p.held_tiles * ranges_of(p, 0).tile_keys * held_rows(p);
}
SPLASH_HOST_DEVICE int held_page_bytes(const Step& p) {
  return p.held_pages * static_cast<int>(sizeof(int32_t));
}
SPLASH_HOST_DEVICE int dynamic_bytes(const Step& p) {
  const int warps = p.short_warps > 0 ? p.short_warps : kWarps;
  return sample_bytes(p) + warps * held_score_bytes(p) + held_page_bytes(p);
}

}  // namespace splash::gpu::decode
