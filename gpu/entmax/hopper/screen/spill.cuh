#pragma once
// Where a warp's lists go on when shared memory is full: its columns (warp_lists.cuh) are moved to a slot of
// the workspace, and finish_rows takes them back, column by column. A warp takes a slot when it needs the
// first time, and gives it back in the end; there are as many as warps can be resident.

#include "gpu/entmax/hopper/screen/warp_lists.cuh"

namespace splash::gpu::entmax::hopper {

// Takes a slot that no warp holds. There always is one, for there are as many as warps that can be resident.
// But others take and leave slots meanwhile, so a warp that asks each of them once may find none. By the
// whole warp.
__device__ __forceinline__ int take_slot(const SpillSlots& slots) {
  unsigned slot = 0;
  if (threadIdx.x % 32 == 0) {
    const auto count = static_cast<unsigned>(slots.count);
    slot = (blockIdx.x * 8 + threadIdx.x / 32) % count;
    while (atomicOr(slots.taken + slot, 1u) != 0) slot = (slot + 1) % count;
    __threadfence();  // the writes of who held it came before
  }
  return __shfl_sync(kWarp, static_cast<int>(slot), 0);
}
// By the whole warp, when it has read what it wrote.
__device__ __forceinline__ void give_slot_back(const SpillSlots& slots, int slot) {
  __syncwarp();
  if (threadIdx.x % 32 != 0) return;
  __threadfence();
  atomicAnd(slots.taken + slot, 0u);
}

// The tiles of a lane's column in a slot, 32 apart.
__device__ __forceinline__ int2* tiles_in(const SpillSlots& slots, int slot, int column) {
  return reinterpret_cast<int2*>(slots.pairs) + int64_t{slot} * slots.pairs_per_lane * 32 + column;
}

// Moves the columns' tiles to the warp's slot, and counts their keys. Quads that have no room there are
// deferred. By the whole warp; not inlined, for it is rarely called.
template <class Lists>
__device__ __noinline__ void spill_columns(const SpillSlots& slots, const Head& head, Lists& lists) {
  const int lane = static_cast<int>(threadIdx.x) % 32, quad = quad_of_lane(), tiles = lists.tiles[lane];
  int slot = lists.slot;
  if (slot < 0) slot = take_slot(slots);
  const int before = lists.spilled[lane], after = before + Lists::kPairs - tiles;
  const unsigned lacking = __ballot_sync(kWarp, after > slots.pairs_per_lane);
  if ((lacking >> 4 * quad & 0xF) != 0) {
    if (lane % 4 < 2) defer_row(lists, head, row_of(lane % 4));
    lists.spilled[lane] = lists.counts[lane] = 0;
  } else {
    int2* const to = tiles_in(slots, slot, lane) + int64_t{32} * (before - tiles);
    int counts = lists.counts[lane];
#pragma unroll 4
    for (int pair = tiles; pair < Lists::kPairs; ++pair) {
      const int2 tile = *reinterpret_cast<const int2*>(lists.columns[pair][lane]);
      to[32 * pair] = tile;
      counts += keys_of_rows(static_cast<uint32_t>(tile.x));
    }
    lists.spilled[lane] = after;
    lists.counts[lane] = counts;
  }
  lists.tiles[lane] = Lists::kPairs;
  __syncwarp();  // all have read slot
  if (lane == 0) lists.slot = slot;
  __syncwarp();  // slot; and what other lanes take back (join_columns)
}

// Keys that the slot holds of the warp's rows, and with_columns those of the columns, too. Not inlined:
// rarely called, in the screen's loop.
template <class Lists>
__device__ __noinline__ int listed_keys(const Lists& lists, bool with_columns) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int counts = lists.counts[lane];
  if (with_columns) {
    const int first = lists.tiles[lane];
#pragma unroll 9
    for (int pair = 0; pair < Lists::kPairs; ++pair) {
      if (pair >= first) counts += keys_of_rows(static_cast<uint32_t>(lists.columns[pair][lane][0]));
    }
  }
  return keys_of_warp(counts);
}

// Fills the calling lane's column with the first of `count` tiles in a slot, 32 apart.
template <class Lists>
__device__ __forceinline__ void take_back(Lists& lists, const int2* from, int count) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 9
  for (int i = 0; i < Lists::kPairs; ++i) {
    if (i < count) *reinterpret_cast<int2*>(lists.columns[Lists::kPairs - 1 - i][lane]) = from[32 * i];
  }
  lists.tiles[lane] = max(Lists::kPairs - count, 0);
}

}  // namespace splash::gpu::entmax::hopper
