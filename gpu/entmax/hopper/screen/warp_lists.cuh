#pragma once
// The few keys of a warp's 16 rows that may have p > 0, in shared memory. wgmma's accumulators give lane l of
// a warp the scores of the rows l / 4 and l / 4 + 8; the lane lists their keys in a column of its own and
// asks no other lane.
//
// Who writes what, and when. No other warp touches a warp's lists.
//   columns, tiles,        Lane l alone writes and reads column l, and what stands of it in a slot of the
//   spilled, counts        workspace (spill.cuh). After the last tile lanes share the columns of a slot, and
//                          lists that are thinned get new counts, with __syncwarp (solve/thin_lists.cuh).
//   slot                   Lane 0, with __syncwarp around.
//   unstored               Lane 0: 0 at the start, and when rows are finished.
//   bound                  The quad's first lane writes it before the first tile and after the sampling
//                          pass, in defer_row the one lane that calls it for the row, and where lists are
//                          thinned one lane for each row. Others read it after a __syncwarp.
//   query, begin, end,     The quad's first lane writes them once, before the first tile; begin only where
//   unit, margin           rows have ranges.
//   scores                 They lie where columns were: written after the last tile, once the keys have
//                          been joined (solve/joined_lists.cuh).
//   solution               The quad's first two lanes write it once, when the rows are solved.

#include <cuda_fp16.h>

#include "gpu/entmax/hopper/screen/row_state.cuh"
#include "gpu/entmax/math/arithmetic.cuh"

namespace splash::gpu::entmax::hopper {

constexpr int kWarpRows = 16;

// What a block's warps share of its head.
struct Head {
  Entmax entmax;
  float* bounds;                   // [q_len]: of deferred rows, in units of <q, k>
  int index, key_head, first_row;  // of the head; of its keys, over the batch; of the block's rows
};

// Each lane owns one column, shared by its two rows and filled from the back with tiles of 64 keys: a hit
// mask and the tile's first key. When it is nearly full, the warp's columns are moved to the workspace
// (spill.cuh). After the last tile, the lists are joined, row after row (solve/joined_lists.cuh).
// kOfLargest: of rows that keep their k_keep largest scores.
template <int kColumn, int kEntries, bool kOfLargest>
struct WarpLists {
  static constexpr bool kKeepsLargest = kOfLargest;
  static constexpr int kPairs = kColumn, kMost = kEntries;  // kMost: entries of lists that are joined at once
  static_assert(kMost <= 64 * kPairs);
  union {
    alignas(16) int columns[kPairs][32][2];
    float scores[kMost];  // of the joined lists
  };
  int tiles[32];      // the lane's column holds tiles from this pair on
  int spilled[32];    // tiles of the lane that were moved to the slot
  int counts[32];     // and their keys, as of keys_of_rows
  int slot;           // of the workspace; -1: the warp has none
  unsigned unstored;  // bits of rows that are finished, but left to backward's dense products
  RowBound bound[kWarpRows];
  float unit[kWarpRows];    // a power of two: <q, k> = unit * score of the screen
  float margin[kWarpRows];  // most error of the screen's scores, beside their last rounding
  int query[kWarpRows];     // of its head; -1: there is no row
  int end[kWarpRows];       // the row sees the keys below; 0: none
  float4 solution[kWarpRows];
  int begin[kWarpRows];  // the row sees no key before; only where rows have ranges (arguments/key_range.h)
};

// The hit mask of 64 keys. Bit i of 0 to 7 is the first row's score of key 8 i + 2 (lane % 4), bit 8 + i the
// second row's; bits 16 to 31 are the same of the keys behind these.
constexpr int kTileKeys = 64;
constexpr uint32_t kFirstRow = 0x00FF00FF;

// How many keys of the first row, and in the high half of the word of the second row, a mask has.
__device__ __forceinline__ int keys_of_rows(uint32_t hits) {
  return __popc(hits & kFirstRow) | __popc(hits & ~kFirstRow) << 16;
}
// Of such a count the second row's, and what both rows have in all columns of the warp.
__device__ __forceinline__ int second_of(int keys) {
  return static_cast<int>(static_cast<unsigned>(keys) >> 16);
}
__device__ __forceinline__ int keys_of_warp(int keys) {
  return __reduce_add_sync(kWarp, (keys & 0xFFFF) + second_of(keys));
}

// The half and the key of a bit of such a mask, which column `lane` holds.
__device__ __forceinline__ int half_of_bit(int bit) {
  return bit / 8 % 2;
}
__device__ __forceinline__ int key_of_bit(int bit, int first_key, int lane) {
  return first_key + 2 * (lane % 4) + 8 * (bit % 8) + bit / 16;
}

// Calls visit(half, key) for each key of the tiles in the calling lane's column whose bit is in `rows`. of:
// the lane that listed them.
template <class Lists, class Visit>
__device__ __forceinline__ void visit_tiles(const Lists& lists, uint32_t rows, int of, const Visit& visit) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t hits = 0;
  int first_key = 0, pair = lists.tiles[lane] - 1;
  for (;;) {  // one key per iteration: lanes with fewer keys in a tile do not wait
    if (hits == 0) {
      if (++pair >= Lists::kPairs) return;
      const int2 tile = *reinterpret_cast<const int2*>(lists.columns[pair][lane]);
      hits = static_cast<uint32_t>(tile.x) & rows;
      first_key = tile.y;
      if (hits == 0) continue;
    }
    const int bit = 31 - __clz(static_cast<int>(hits));
    hits ^= 1u << bit;
    visit(half_of_bit(bit), key_of_bit(bit, first_key, of));
  }
}

// Lane l's two rows are those of a quad: l / 4 and l / 4 + 8.
__device__ __forceinline__ int quad_of_lane() {
  return static_cast<int>(threadIdx.x) % 32 / 4;
}
__device__ __forceinline__ int row_of(int half) {
  return quad_of_lane() + 8 * half;
}

// Defers the row: another kernel computes it and may start from its bound. What columns hold of it is left
// out (bits_of_open_rows). A row deferred before keeps its first bound.
template <class Lists>
__device__ __forceinline__ void defer_row(Lists& lists, const Head& head, int row) {
  if (lists.query[row] < 0) return;
  if (!lists.bound[row].is_deferred())
    head.bounds[lists.query[row]] = lists.unit[row] * lists.bound[row].value;
  lists.bound[row] = RowBound::of(RowState::broad);
}

// The bits of a hit mask that belong to rows which are not deferred, of a quad's two.
template <class Lists>
__device__ __forceinline__ uint32_t bits_of_open_rows(const Lists& lists, int quad) {
  return (lists.bound[quad].is_deferred() ? 0 : kFirstRow) |
         (lists.bound[quad + 8].is_deferred() ? 0 : ~kFirstRow);
}

// Of a count of keys (keys_of_rows) in the calling lane's column those of rows that are not deferred.
template <class Lists>
__device__ __forceinline__ int of_open_rows(const Lists& lists, int keys) {
  const uint32_t open = bits_of_open_rows(lists, quad_of_lane());
  return ((open & kFirstRow) != 0 ? keys & 0xFFFF : 0) | ((open & ~kFirstRow) != 0 ? keys & ~0xFFFF : 0);
}

}  // namespace splash::gpu::entmax::hopper
