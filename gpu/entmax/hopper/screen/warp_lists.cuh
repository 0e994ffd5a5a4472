#pragma once
// The few keys of a warp's 16 rows that may have p > 0, in shared memory. wgmma's accumulators give lane l of
// a warp the scores of the rows l / 4 and l / 4 + 8; the lane lists their keys in a column of its own and
// asks no other lane.
//
// Who writes what, and when. No other warp touches a warp's lists.
//   columns, keys, tiles   While keys are screened, lane l alone writes column l. Between
//                          Screen::save_columns and the end of compact_lists, all lanes read and write all
//                          columns, with __syncwarp between.
//   bound                  The quad's first lane writes it before the first tile and after the sampling
//                          pass, lanes 0 and 1 in compact_lists, and in defer_row the one lane that calls
//                          it for the row. Others read it after a __syncwarp.
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
  float* bounds;  // [q_len]: of deferred rows, in units of <q, k>
};

// Each lane owns one column, shared by its two rows and filled from both ends: single keys in front (one slot
// each), 64-key tiles at the back (two slots: a hit mask and the tile's first key). Appending a tile takes
// fewer instructions than appending its keys; compact_lists expands tiles to keys when a column is nearly
// full. After the last tile, the lists are joined, row after row (solve/joined_lists.cuh).
template <int kPairs, int kEntries, bool kLong>
struct WarpLists {
  static constexpr bool kIsLong = kLong;
  static constexpr int kSlots = 2 * kPairs, kMost = kEntries;  // kMost: entries of all lists, joined
  static_assert(kMost <= 32 * kSlots);
  union {
    alignas(16) int columns[kPairs][32][2];
    float scores[kMost];  // of the joined lists
  };
  int keys[32];   // in front of each lane's column
  int tiles[32];  // from this pair of slots on the column holds tiles
  RowBound bound[kWarpRows];
  float unit[kWarpRows];    // a power of two: <q, k> = unit * score of the screen
  float margin[kWarpRows];  // most error of the screen's scores, beside their last rounding
  int query[kWarpRows];     // of its head; -1: there is no row
  int end[kWarpRows];       // the row sees the keys below; 0: none
  float4 solution[kWarpRows];
  int begin[kWarpRows];  // the row sees no key before; only where rows have ranges (arguments/key_range.h)

  __device__ __forceinline__ int& slot(int lane, int i) { return columns[i / 2][lane][i % 2]; }
};

// A key of a lane's first or second row, as columns hold it.
__device__ __forceinline__ int key_of_half(int key, int half) {
  return key | half << 31;
}
__device__ __forceinline__ int half_of(int listed) {
  return listed < 0 ? 1 : 0;
}
__device__ __forceinline__ int key_of(int listed) {
  return listed & 0x7FFFFFFF;
}

// The hit mask of 64 keys. Bit i of 0 to 7 is the first row's score of key 8 i + 2 (lane % 4), bit 8 + i the
// second row's; bits 16 to 31 are the same of the keys behind these.
constexpr int kTileKeys = 64;
constexpr uint32_t kFirstRow = 0x00FF00FF;

// The half and the key of a bit of such a mask, which column `lane` holds.
__device__ __forceinline__ int half_of_bit(int bit) {
  return bit / 8 % 2;
}
__device__ __forceinline__ int key_of_bit(int bit, int first_key, int lane) {
  return first_key + 2 * (lane % 4) + 8 * (bit % 8) + bit / 16;
}

// Calls visit(half, key) for each key of the tiles in the calling lane's column, until look(hits, pair) is
// false of a tile; look may clear bits of its hits. Returns the pair of slots where it ended.
template <class Lists, class Look, class Visit>
__device__ __forceinline__ int visit_tiles(const Lists& lists, const Look& look, const Visit& visit) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t hits = 0;
  int first_key = 0, pair = lists.tiles[lane] - 1;
  for (;;) {  // one key per iteration: lanes with fewer keys in a tile do not wait
    if (hits == 0) {
      if (++pair >= Lists::kSlots / 2) return pair;
      const int2 tile = *reinterpret_cast<const int2*>(lists.columns[pair][lane]);
      hits = static_cast<uint32_t>(tile.x);
      first_key = tile.y;
      if (!look(hits, pair)) return pair;
      if (hits == 0) continue;
    }
    const int bit = 31 - __clz(static_cast<int>(hits));
    hits ^= 1u << bit;
    visit(half_of_bit(bit), key_of_bit(bit, first_key, lane));
  }
}

// Lane l's two rows are those of a quad: l / 4 and l / 4 + 8.
__device__ __forceinline__ int quad_of_lane() {
  return static_cast<int>(threadIdx.x) % 32 / 4;
}
__device__ __forceinline__ int row_of(int half) {
  return quad_of_lane() + 8 * half;
}

// Defers the row: another kernel computes it and may start from its bound. state: overflowed or broad. The
// caller drops what columns hold of the row. A row deferred before keeps its first bound.
template <class Lists>
__device__ __forceinline__ void defer_row(Lists& lists, const Head& head, int row, RowState state) {
  if (lists.query[row] < 0) return;
  if (!lists.bound[row].is_deferred())
    head.bounds[lists.query[row]] = lists.unit[row] * lists.bound[row].value;
  lists.bound[row] = RowBound::of(state);
}

}  // namespace splash::gpu::entmax::hopper
