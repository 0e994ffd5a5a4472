#pragma once
// Lists of two rows that do not fit because the rows' bounds were weak: samples tell little of a row whose
// large scores are elsewhere. tau of any of a row's keys is at most tau of all. So the lists are joined and
// scored a chunk at a time, a chunk's tau raises the bound, and keys whose exact scores do not exceed it
// leave the list: they have p = 0. What remains mostly fits: the support, and keys little below tau.

#include "gpu/entmax/hopper/solve/list_products.cuh"
#include "gpu/entmax/hopper/solve/solve_rows.cuh"

namespace splash::gpu::entmax::hopper {

// A bound from exact scores lies this much below the tau that they have, in z: more than float32 sums and
// powers of 1536 entries may be off, so that no later sum misses a key.
constexpr float kBoundSlack = 0x1p-14f;
// The second sweep over a quad's lists prunes what was found before the bound stood.
constexpr int kMostSweeps = 2;

// Raises the bounds of the quad's rows by tau of a chunk, and drops keys of the chunk from the slot. In: the
// chunk's scores, how many keys each row has in it, and what solve_rows made of them. Where more than half
// stays, and of all chunks more than fits if others are like it, supports are broad: the rows are deferred.
// By the whole warp.
template <class Lists>
__device__ __forceinline__ void prune_chunk(const SpillSlots& slots, const Head& head, Lists& lists,
                                            const Chunk& chunk, const Share& share, const int (&length)[2],
                                            const Solution (&solution)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const PartOfColumn taken(lists, chunk, share);
  int2* const tiles = tiles_in(slots, lists.slot, taken.column);
  const uint32_t open = bits_of_open_rows(lists, share.quad);
  float bound[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float lower = bound_of_row(lists, share.row(half));
    const float tau = __fsub_rd(solution[half].largest, -solution[half].bound);
    const float raised = __fsub_rd(tau, __fdividef(kBoundSlack, head.entmax.gain));
    bound[half] = length[half] > 0 && raised < INFINITY ? fmaxf(lower, raised) : lower;
  }
  const int keys = taken.keys(tiles, open);
  int kept_keys = 0;
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
  const int all = keys_of_warp(keys), kept = keys_of_warp(kept_keys);
  if (2 * kept > all && kept * chunk.chunks > Lists::kMost && lane < 2)
    defer_row(lists, head, share.row(lane));
#pragma unroll
  for (int lanes = 1; lanes < 8; lanes *= 2) kept_keys += __shfl_xor_sync(kWarp, kept_keys, lanes);
  if (lane % 8 == 0)
    lists.counts[taken.column] = kept_keys + (chunk.chunk == 0 ? 0 : lists.counts[taken.column]);
  __syncwarp();  // bounds, counts, and masks, which other lanes take back
}

// Leaves the quad's rows to the dense path.
template <class Lists>
__device__ __forceinline__ void defer_quad(Lists& lists, const Head& head, int quad) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane < 2) defer_row(lists, head, quad + 8 * lane);
  __syncwarp();  // states of the rows
}

// The keys in the calling lane's column of rows that are open, as of keys_of_rows.
template <class Lists>
__device__ __forceinline__ int open_keys(const Lists& lists) {
  return of_open_rows(lists, lists.counts[threadIdx.x % 32]);
}
// The same of all four columns of a quad.
template <class Lists>
__device__ __forceinline__ int keys_of_quad(const Lists& lists, int quad) {
  return __shfl_sync(kWarp, quad_sum(open_keys(lists)), 4 * quad);
}
// Whether the lists of a quad fit when they are joined.
template <class Lists>
__device__ __forceinline__ bool fits(const Lists& lists, int quad) {
  const int keys = keys_of_quad(lists, quad);
  return full_batches(keys & 0xFFFF) + full_batches(second_of(keys)) <= Lists::kMost;
}

// In how many chunks the lists of a quad are thinned.
template <class Lists>
__device__ __forceinline__ int chunks_of(const Lists& lists, int quad) {
  constexpr int kOfChunk = Lists::kMost / 2;  // in the mean, so that nearly all chunks fit
  const int keys = keys_of_quad(lists, quad);
  return ((keys & 0xFFFF) + second_of(keys) + kOfChunk - 1) / kOfChunk;
}

// Whether a chunk fits when it is joined.
template <class Lists>
__device__ __forceinline__ bool chunk_fits(const SpillSlots& slots, const Lists& lists, const Chunk& chunk) {
  const PartOfColumn part(lists, chunk, Share(chunk));
  const int keys = part.keys(tiles_in(slots, lists.slot, part.column), bits_of_open_rows(lists, chunk.first));
  return keys_of_warp(keys) <= kMostJoined<Lists>;
}

// Not inlined: rarely called.
template <class Rows, class Lists>
__device__ __noinline__ void thin_chunk(const ForwardProblem& p, int head_index, const Head& head,
                                        Lists& lists, Chunk chunk, int (&listed)[Lists::kMost]) {
  const Share share(chunk);
  EntryRange ranges[2];
  int start[2], length[2], entries[2];
  Solution solution[2];
  join_columns(p.spill, lists, chunk, share, listed, ranges, start, length);
  score_exactly<Rows>(p, head, lists, listed, ranges);
  solve_rows(lists, head.entmax, share, start, length, solution, entries);
  prune_chunk(p.spill, head, lists, chunk, share, length, solution);
}

// Thins the lists of a quad, chunk by chunk. Where they do not fit then, its rows are deferred.
template <class Rows, class Lists>
__device__ __forceinline__ void thin_quad(const ForwardProblem& p, int head_index, const Head& head,
                                          Lists& lists, int quad, int (&listed)[Lists::kMost]) {
#pragma unroll 1
  for (int sweep = 0; sweep < kMostSweeps && !fits(lists, quad); ++sweep) {
    const int chunks = chunks_of(lists, quad);
#pragma unroll 1
    for (int i = 0; i < chunks && bits_of_open_rows(lists, quad) != 0; ++i) {
      const Chunk chunk{{quad, quad + 1}, i, chunks};
      if (chunk_fits(p.spill, lists, chunk))
        thin_chunk<Rows>(p, head_index, head, lists, chunk, listed);
      else
        defer_quad(lists, head, quad);
    }
  }
  if (!fits(lists, quad)) defer_quad(lists, head, quad);
}

}  // namespace splash::gpu::entmax::hopper
