#pragma once
// Lists of two rows that do not fit because the rows' bounds were weak: samples tell little of a row whose
// large scores are elsewhere. tau of any of a row's keys is at most tau of all. So the lists are joined and
// scored a chunk at a time, a chunk's tau raises the bound, and keys whose exact scores do not exceed it
// leave the list: they have p = 0. What remains mostly fits: the support, and keys little below tau.

#include "gpu/entmax/hopper/solve/joined_lists.cuh"

namespace splash::gpu::entmax::hopper {

// A bound from exact scores lies this much below the tau that they have, in z: more than float32 sums and
// powers of 1536 entries may be off, so that no later sum misses a key.
constexpr float kBoundSlack = 0x1p-14f;
// The second sweep over a quad's lists prunes what was found before the bound stood.
constexpr int kMostSweeps = 2;

// Raises the bounds of the quad's rows by tau of a chunk, and drops keys of the chunk from the slot. In: the
// chunk's scores; how many keys each row has in it, and their tau, in units of <q, k>. Where more than half
// stays, supports are broad: the rows are deferred. By the whole warp. Not inlined: rarely called. (Arguments
// by value: references would force them into memory.)
template <class Lists>
__device__ __noinline__ void prune_chunk(const SpillSlots& slots, const Head& head, Lists& lists, Quads quads,
                                         int2 keys_of_row, float2 tau_of_row) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Share share(quads);
  const int length[2] = {keys_of_row.x, keys_of_row.y};
  const float tau[2] = {tau_of_row.x, tau_of_row.y};
  const PartOfColumn taken(lists, quads, share);
  int2* const tiles = tiles_in(slots, lists.slot, taken.column);
  const uint32_t open = bits_of_open_rows(lists, share.quad);
  float bound[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float lower = lists.unit[share.row(half)] * lists.bound[share.row(half)].value;
    const float raised = __fsub_rd(tau[half], __fdividef(kBoundSlack, head.entmax.gain));
    bound[half] = length[half] > 0 && raised < INFINITY ? fmaxf(lower, raised) : lower;
  }
  int keys = 0, kept_keys = 0;
  for (int i = taken.begin; i < taken.end; ++i)
    keys += keys_of_rows(static_cast<uint32_t>(tiles[int64_t{32} * i].x) & open);
  EntryRange ranges[2];
  int start[2], lengths[2];
  JoinedPlaces places(share, keys, ranges, start, lengths);
  // In the order of visit_tiles, which fills columns from the back and begins with the last tile there.
  for (int first = taken.begin; first < taken.end; first += Lists::kPairs) {
    for (int i = min(first + Lists::kPairs, taken.end) - 1; i >= first; --i) {
      uint32_t kept = 0;
      for (uint32_t hits = static_cast<uint32_t>(tiles[int64_t{32} * i].x) & open; hits != 0;) {
        const int bit = 31 - __clz(static_cast<int>(hits));
        hits ^= 1u << bit;
        const int at = half_of_bit(bit) == 0 ? places.next[0]++ : places.next[1]++;
        if (lists.scores[at] > (half_of_bit(bit) == 0 ? bound[0] : bound[1])) kept |= 1u << bit;
      }
      tiles[int64_t{32} * i].x = static_cast<int>(kept);
      kept_keys += keys_of_rows(kept);
    }
  }
  __syncwarp();  // all have read the bounds
  if (lane < 2 && (lane == 0 ? length[0] : length[1]) > 0) {
    RowBound& row = lists.bound[share.row(lane)];
    row.value = fmaxf(row.value, (lane == 0 ? bound[0] : bound[1]) / lists.unit[share.row(lane)]);
  }
  const auto of_warp = [](int x) { return __reduce_add_sync(kWarp, (x & 0xFFFF) + (x >> 16)); };
  if (2 * of_warp(kept_keys) > of_warp(keys) && lane < 2) defer_row(lists, head, share.row(lane));
#pragma unroll
  for (int lanes = 1; lanes < 8; lanes *= 2) kept_keys += __shfl_xor_sync(kWarp, kept_keys, lanes);
  if (lane % 8 == 0)
    lists.counts[taken.column] = kept_keys + (quads.chunk == 0 ? 0 : lists.counts[taken.column]);
  __syncwarp();  // bounds, counts, and masks, which other lanes take back
}

// Leaves the quad's rows to the dense path.
template <class Lists>
__device__ __forceinline__ void defer_quad(Lists& lists, const Head& head, int quad) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane < 2) defer_row(lists, head, quad + 8 * lane);
  __syncwarp();  // states of the rows
}

// The keys of the two rows of the calling lane's quad that are open, as of keys_of_rows.
template <class Lists>
__device__ __forceinline__ int keys_of_quad(const Lists& lists) {
  return quad_sum(of_open_rows(lists, lists.counts[threadIdx.x % 32]));
}
__device__ __forceinline__ int second_of(int keys) {
  return static_cast<int>(static_cast<unsigned>(keys) >> 16);
}
// Whether the lists of a quad fit when they are joined.
template <class Lists>
__device__ __forceinline__ bool keys_fit(int keys) {
  return full_batches(keys & 0xFFFF) + full_batches(second_of(keys)) <= Lists::kMost;
}
template <class Lists>
__device__ __forceinline__ bool fits(const Lists& lists, int quad) {
  return keys_fit<Lists>(__shfl_sync(kWarp, keys_of_quad(lists), 4 * quad));
}

// In how many chunks the lists of a quad are thinned.
template <class Lists>
__device__ __forceinline__ int chunks_of(const Lists& lists, int quad) {
  constexpr int kOfChunk = Lists::kMost / 2;  // in the mean, so that nearly all chunks fit
  const int keys = __shfl_sync(kWarp, keys_of_quad(lists), 4 * quad);
  return ((keys & 0xFFFF) + second_of(keys) + kOfChunk - 1) / kOfChunk;
}

// Whether a chunk fits when it is joined.
template <class Lists>
__device__ __forceinline__ bool chunk_fits(const SpillSlots& slots, const Lists& lists, const Quads& chunk) {
  const PartOfColumn part(lists, chunk, Share(chunk));
  const int2* const tiles = tiles_in(slots, lists.slot, part.column);
  const uint32_t open = bits_of_open_rows(lists, chunk.first);
  int keys = 0;
  for (int i = part.begin; i < part.end; ++i)
    keys += keys_of_rows(static_cast<uint32_t>(tiles[int64_t{32} * i].x) & open);
  return __reduce_add_sync(kWarp, (keys & 0xFFFF) + second_of(keys)) <= Lists::kMost - 64;  // 64: padding
}

}  // namespace splash::gpu::entmax::hopper
