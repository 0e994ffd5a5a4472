#pragma once
// What the kernels of decode share: the paged cache, the step's tensors, and the workspace.
//
// A unit is what one block works on: a sequence, a key head, and up to eight rows (query heads of the key
// head times queries; row = query head within the group * q_len + query). Its keys fall into four ranges, in
// key order:
//
//   head  keys 0 ... 15             scored exactly by start_kernel
//   early full pages before recent  screened second, against a bound that `recent` has raised
//   recent the last eighth of the screened pages, screened first
//   tail  the last 256 keys and what else their pages hold   scored exactly by start_kernel
//
// Each range appends the keys that may be in the support to segments, one per warp, so nothing depends on
// timing: the segments in their order list keys in key order. Compiles without nvcc.

#include <cstdint>

#include "core/dtype.h"
#include "core/host_device.h"

namespace splash::gpu::decode {

constexpr int kRows = 8;  // of a unit, at most: the columns of mma.m16n8k16
constexpr int kHeadKeys = 16;
constexpr int kTailKeys = 256;
constexpr int kMostPage = 256;
constexpr int kTileKeys = 64;                                   // that a warp screens at a time, of one page
constexpr int kSampleKeys = kHeadKeys + kTailKeys + kMostPage;  // more than head and tail ever hold
constexpr int kListedRow = 512;  // keys of a row above its last bound that shared memory holds

// Keys or values: [pages, page_size, kv_heads, head_dim] or any order of the first three; strides in
// elements, multiples of 8. The base is 16-byte aligned.
struct PagedTensor {
  const void* data = nullptr;
  int64_t page_stride = 0, token_stride = 0, head_stride = 0;
};

struct Cache {
  Dtype dtype = Dtype::bf16;  // bf16 or f16
  int pages = 0, page_size = 0, kv_heads = 0, head_dim = 0;
  PagedTensor keys{}, values{};
  int bits = 0;                // of the low-bit copy: 4, 8, or 0 for none
  uint8_t* low_bit = nullptr;  // [pages, kv_heads, LowBitLayout::bytes()]
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
  int32_t* counts =
      nullptr;  // [units, 4]: keys screened, candidates, keys scored exactly after it, 1 if lists overflowed
};

// The keys that a sequence's ranges hold. Lengths are known on the device alone.
struct Ranges {
  int length, tail, tile_keys;  // tail: its first key, a page's first
  int tiles, early_tiles;       // screened tiles, and those of them before `recent`

  SPLASH_HOST_DEVICE Ranges(int keys, int page_size)
      : length(keys),
        tail(keys > kTailKeys ? (keys - kTailKeys) / page_size * page_size : 0),
        tile_keys(page_size < kTileKeys ? page_size : kTileKeys),
        tiles(tail / tile_keys),
        early_tiles(tiles - (tiles + 7) / 8) {}
};

// The segments of a unit's list: head, early, recent, tail.
struct Segments {
  int early = 0, recent = 0;                    // how many
  int early_capacity = 0, recent_capacity = 0;  // keys of each

  SPLASH_HOST_DEVICE int count() const { return early + recent + 2; }
  SPLASH_HOST_DEVICE int capacity(int segment) const {
    return segment == 0                ? kHeadKeys
           : segment <= early          ? early_capacity
           : segment <= early + recent ? recent_capacity
                                       : kTailKeys + kMostPage;
  }
  SPLASH_HOST_DEVICE int first(int segment) const {  // place in the list
    return segment == 0       ? 0
           : segment <= early ? kHeadKeys + (segment - 1) * early_capacity
                              : kHeadKeys + early * early_capacity + (segment - 1 - early) * recent_capacity;
  }
  SPLASH_HOST_DEVICE int total() const { return first(count() - 1) + capacity(count() - 1); }
};

// The key with the largest upper score that a warp has seen for a row; -1: none.
struct Best {
  float upper;
  int key;
};

// The kernels' argument, passed by value.
struct Step {
  Cache cache{};
  PageTable table{};
  RowTensor q{}, out{};
  StepOutputs outputs{};
  const float *alpha = nullptr, *scale = nullptr;  // [1] or [q_heads], in device memory
  int alphas = 1, scales = 1;
  int q_heads = 1, q_len = 1;

  int group = 1, rows = 1, row_tiles = 1,
      units = 1;        // rows: group * q_len; units: batch * kv_heads * row_tiles
  int listed_rows = 2;  // rows of a unit, rounded up to an even number

  // Workspace
  Segments segments{};
  int32_t* lengths = nullptr;  // [units]: keys; -1: the sequence's length or page table is bad
  float* bounds = nullptr;     // [units, kRows] in <q, k>: a key whose score is not above has p = 0
  int32_t* counts = nullptr;   // [units, segments]: keys listed; more than the capacity: the list overflowed
  int32_t* kept = nullptr;     // [units, segments]: keys left after the last bound, scored exactly
  int32_t* keys = nullptr;     // [units, segments.total()]
  float* scores = nullptr;     // [units, segments.total(), listed_rows]: upper scores, then exact ones
  float* maxima = nullptr;     // [units, segments, kRows]: largest exact score
  Best* best = nullptr;        // [units, early + recent, kRows]
  int32_t* overflowed = nullptr;  // [units]
  int fallback_blocks = 1;        // fallback_kernel's, each with room for every key of a sequence:
  int32_t* all_keys = nullptr;    // [fallback_blocks, listed_rows, width * page_size]
  float* all_scores = nullptr;    // the same
};

}  // namespace splash::gpu::decode
