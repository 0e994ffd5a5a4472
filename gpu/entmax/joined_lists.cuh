#pragma once
// The lists of a warp's rows (row_lists.cuh) when all keys have been looked at.
//
// The lists of the first eight rows lie one after the other, row by row, then from a multiple of 32 on those
// of the others: so tensor products are full, whatever lists are long. Behind each eight, up to a multiple of
// 32, any key of the head, of any row.

#include "gpu/entmax/row_lists.cuh"

namespace splash::gpu::entmax {

__device__ __forceinline__ int full_batches(int entries) {
  return (entries + 31) & ~31;
}

// A list's entry: a key below kMostKeys (problem.h), and above it which of eight rows it belongs to.
__device__ __forceinline__ int entry_of(int key, int row) {
  return key | row << 28;
}
__device__ __forceinline__ int row_of_entry(int entry) {
  return static_cast<int>(static_cast<unsigned>(entry) >> 28);
}
__device__ __forceinline__ uint32_t key_of_entry(int entry) {
  return static_cast<uint32_t>(entry) % kMostKeys;
}

// Entries of eight rows: from `first` to below `end`.
struct EightLists {
  int first, end;
};

// Puts the lists one after the other. start, length: of the calling lane's rows. False where there is too
// little room: a tile may hold more keys than it takes slots.
template <class Lists>
__device__ __forceinline__ bool join_columns(Lists& lists, int (&listed)[Lists::kMost],
                                             EightLists (&eights)[2], int (&start)[2], int (&length)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, quad = quad_of_lane();
  const int keys = lists.keys[lane], tiles = lists.tiles[lane];
  int count[2] = {};
  for (int i = 0; i < keys; ++i) {
    count[0] += 1 - half_of(lists.slot(lane, i));
    count[1] += half_of(lists.slot(lane, i));
  }
  for (int pair = tiles; pair < Lists::kSlots / 2; ++pair) {
    const auto bits = static_cast<uint32_t>(lists.columns[pair][lane][0]);
    count[0] += __popc(bits & kFirstRow);
    count[1] += __popc(bits & ~kFirstRow);
  }
  int upto = count[0] | count[1] << 16;
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const int lower = __shfl_up_sync(kWarp, upto, lanes);
    if (lane >= lanes) upto += lower;
  }
  const int total = __shfl_sync(kWarp, upto, 31);
  eights[0] = {0, total & 0xFFFF};
  eights[1].first = full_batches(eights[0].end);
  eights[1].end = eights[1].first + (total >> 16);
  if (full_batches(eights[1].end) > Lists::kMost) return false;
  int next[2] = {(upto & 0xFFFF) - count[0], eights[1].first + (upto >> 16) - count[1]};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    start[half] = __shfl_sync(kWarp, next[half], 0, 4);
    length[half] = __shfl_sync(kWarp, next[half] + count[half], 3, 4) - start[half];
  }
  const auto put = [&](int half, int key) {
    const int at = half == 0 ? next[0]++ : next[1]++;
    listed[at] = entry_of(key, quad);
  };
  for (int i = 0; i < keys; ++i) put(half_of(lists.slot(lane, i)), key_of(lists.slot(lane, i)));
  visit_tiles(lists, [&](int half, int key, int) { put(half, key); });
#pragma unroll
  for (const EightLists& eight : eights) {
    const int behind = eight.end + lane;
    if (behind < full_batches(eight.end)) listed[behind] = 0;
  }
  __syncwarp();
  return true;
}

}  // namespace splash::gpu::entmax
