#pragma once
// The few keys of a warp's 16 rows that may have p > 0, in shared memory. Lane l of a warp finds those of the
// rows l / 4 and l / 4 + 8, as wgmma's accumulators show it their scores, and lists them in a column of its
// own, without asking another.
//
// A bound lies below tau. While keys are screened it is in units of a float16 product with the query scaled
// by a power of two, units of their own for each row.

#include <cfloat>

#include <cuda_fp16.h>

#include "gpu/entmax/weights.cuh"

namespace splash::gpu::entmax {

constexpr int kWarpRows = 16;

// A row's bound is at most tau: what is not above it has p = 0. Rows that take no more keys are marked by
// it:
inline constexpr float kBroad = FLT_MAX;  // left to the dense path: many rows beside it outgrew their lists
inline constexpr float kNothing = 1e30f;  // it sees no keys; more than float16 holds, so nothing exceeds it
inline constexpr float kCrowded = INFINITY;  // it outgrew its list; or is no row at all

__device__ __forceinline__ bool is_left(float bound) {  // to other kernels
  return bound >= kBroad;
}

// What a block's warps share of its head.
struct Head {
  Entmax entmax;
  float* bounds;  // [q_len]: where rows that are left leave their bounds, in units of <q, k>
};

// A lane's column holds, of both of its rows, from the start keys, one a slot, from the end tiles of which
// some keys are to be listed, two slots each: a bit a key, and the tile's first key. A tile takes its room in
// fewer instructions than its keys would take, which become of it when room is short. When all keys have been
// looked at, the lists lie one after the other (joined_lists.cuh).
template <int kPairs, int kEntries>
struct RowLists {
  static constexpr int kSlots = 2 * kPairs, kMost = kEntries;  // kMost: of all lists
  static_assert(kMost <= 32 * kSlots);
  union {
    alignas(16) int columns[kPairs][32][2];
    float scores[kMost];  // of the lists one after the other
  };
  int keys[32];             // that each lane's column holds
  int tiles[32];            // from this pair of slots on it holds tiles
  float bound[kWarpRows];   // in the row's units
  float unit[kWarpRows];    // a power of two: <q, k> = unit * score
  float margin[kWarpRows];  // that the screen's scores are off by, beside their last rounding
  int query[kWarpRows];     // of its head; -1 where there is none
  int end[kWarpRows];       // it sees the keys below
  float4 solution[kWarpRows];

  __device__ __forceinline__ int& slot(int lane, int i) { return columns[i / 2][lane][i % 2]; }
};

// A key of a lane's first or second row as columns hold it.
__device__ __forceinline__ int key_of_half(int key, int half) {
  return key | half << 31;
}
__device__ __forceinline__ int half_of(int listed) {
  return listed < 0 ? 1 : 0;
}
__device__ __forceinline__ int key_of(int listed) {
  return listed & 0x7FFFFFFF;
}

// Of 64 keys a lane has 16 scores of each of its rows: bit i of 0 to 7 is the first row's with key 8 i + 2
// (lane % 4), bit 8 + i the second row's, bits 16 and more are those of the next keys.
constexpr int kTileKeys = 64;
constexpr uint32_t kFirstRow = 0x00FF00FF;

// Calls visit(half, key, pair) for each key of the tiles in the calling lane's column.
template <class Lists, class Visit>
__device__ __forceinline__ void visit_tiles(const Lists& lists, const Visit& visit) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int2 tile = {};
  for (int pair = lists.tiles[lane] - 1;;) {  // a key a turn, so that lanes with fewer in a tile do not wait
    if (tile.x == 0) {
      if (++pair >= Lists::kSlots / 2) break;
      tile = *reinterpret_cast<const int2*>(lists.columns[pair][lane]);
    }
    const auto bit = static_cast<unsigned>(31 - __clz(tile.x));
    tile.x ^= static_cast<int>(1u << bit);
    visit(static_cast<int>(bit / 8 % 2), tile.y + 2 * (lane % 4) + static_cast<int>(8 * (bit % 8) + bit / 16),
          pair);
  }
}

// Lane l's two rows are those of a quad: l / 4 and l / 4 + 8.
__device__ __forceinline__ int quad_of_lane() {
  return static_cast<int>(threadIdx.x) % 32 / 4;
}
__device__ __forceinline__ int row_of(int half) {
  return quad_of_lane() + 8 * half;
}

// The row is left to others, who may start from its bound. mark: kCrowded or kBroad. What columns
// hold of it is the caller's to drop.
template <class Lists>
__device__ __forceinline__ void close_row(Lists& lists, const Head& head, int row, float mark) {
  if (lists.query[row] < 0) return;
  if (!is_left(lists.bound[row])) head.bounds[lists.query[row]] = lists.unit[row] * lists.bound[row];
  lists.bound[row] = mark;
}

}  // namespace splash::gpu::entmax
