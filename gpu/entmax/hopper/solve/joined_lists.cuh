#pragma once
// The lists of a warp's rows, joined after the last tile (columns: screen/warp_lists.cuh).
//
// First the lists of the first eight rows, row after row; then, from a multiple of 32 on, those of the other
// eight. So products on tensor cores are full, whichever lists are long. Each eight is padded to a multiple
// of 32 with any key of the head, of any row.

#include "gpu/entmax/hopper/screen/warp_lists.cuh"

namespace splash::gpu::entmax::hopper {

__device__ __forceinline__ int full_batches(int entries) {
  return (entries + 31) & ~31;
}

// An entry: a key below kMostKeys (problem.h), and in the bits above it the row, of eight.
__device__ __forceinline__ int entry_of(int key, int row) {
  return key | row << 28;
}
__device__ __forceinline__ int row_of_entry(int entry) {
  return static_cast<int>(static_cast<unsigned>(entry) >> 28);
}
__device__ __forceinline__ uint32_t key_of_entry(int entry) {
  return static_cast<uint32_t>(entry) % kMostKeys;
}

// The entries of eight rows: [first, end).
struct EntryRange {
  int first, end;
};

// Joins the columns' lists. start, length: of the calling lane's rows. False where the entries do not fit: a
// tile may hold more keys than it takes slots.
template <class Lists>
__device__ __forceinline__ bool join_columns(Lists& lists, int (&listed)[Lists::kMost],
                                             EntryRange (&ranges)[2], int (&start)[2], int (&length)[2]) {
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
  ranges[0] = {0, total & 0xFFFF};
  ranges[1].first = full_batches(ranges[0].end);
  ranges[1].end = ranges[1].first + (total >> 16);
  if (full_batches(ranges[1].end) > Lists::kMost) return false;
  int next[2] = {(upto & 0xFFFF) - count[0], ranges[1].first + (upto >> 16) - count[1]};
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
  visit_tiles(
      lists, [](uint32_t, int) { return true; }, put);
#pragma unroll
  for (const EntryRange& range : ranges) {
    const int behind = range.end + lane;
    if (behind < full_batches(range.end)) listed[behind] = 0;
  }
  __syncwarp();  // listed is there; and all columns have been read: score_exactly writes scores in their
                 // bytes
  return true;
}

}  // namespace splash::gpu::entmax::hopper
