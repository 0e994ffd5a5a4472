#pragma once
// The lists of a warp's rows, joined after the last tile (columns: screen/warp_lists.cuh): of as many quads
// at once as there is room for, mostly of all.
//
// First the lists of the first eight rows, row after row; then, from a multiple of 32 on, those of the other
// eight. So products on tensor cores are full, whichever lists are long. Each eight is padded to a multiple
// of 32 with any key of the head, of any row.

#include "gpu/entmax/hopper/screen/spill.cuh"

namespace splash::gpu::entmax::hopper {

__device__ __forceinline__ int full_batches(int entries) {
  return (entries + 31) & ~31;
}
// Keys that fit when they are joined, however they are divided among two rows: padding of each takes 32.
template <class Lists>
constexpr int kMostJoined = Lists::kMost - 64;

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

constexpr int kQuads = 8;  // of a warp

// The quads whose lists are joined at once: [first, end). A quad has the rows `quad` and `quad + 8`.
struct Quads {
  int first, end;
  __device__ __forceinline__ bool has(int quad) const { return quad >= first && quad < end; }
  __device__ __forceinline__ bool has_row(int row) const { return has(row % 8); }
  // How many lanes share a quad's work: where quads are few, more than four, so that most have some.
  __device__ __forceinline__ int lanes() const {
    const int quads = end - first;
    return quads > 4 ? 4 : quads > 2 ? 8 : quads > 1 ? 16 : 32;
  }
};
// One of `chunks` parts of a quad's lists, which do not fit as a whole (thin_lists.cuh).
struct Chunk : Quads {
  int chunk, chunks;
};
struct AllQuads {
  int keys;  // in the calling lane's column, of rows that are not deferred (keys_of_rows)
  static constexpr int first = 0, end = kQuads;
  __device__ __forceinline__ constexpr bool has(int /*quad*/) const { return true; }
  __device__ __forceinline__ constexpr bool has_row(int /*row*/) const { return true; }
  __device__ __forceinline__ constexpr int lanes() const { return 4; }
};

// The calling lane's part of the work: it is one of `lanes` of a quad. Beyond the last quad it has none.
struct Share {
  int lanes, lane, quad;
  bool works;

  template <class SomeQuads>
  __device__ __forceinline__ explicit Share(const SomeQuads& quads)
      : lanes(quads.lanes()),
        lane(static_cast<int>(threadIdx.x) % lanes),
        quad(quads.first + static_cast<int>(threadIdx.x) % 32 / lanes),
        works(quads.has(quad)) {
    quad = min(quad, 7);
  }
  __device__ __forceinline__ int row(int half) const { return quad + 8 * half; }
  // The lane of the warp that is the quad's i-th.
  __device__ __forceinline__ int lane_of_warp(int i) const {
    return static_cast<int>(threadIdx.x) % 32 - lane + i;
  }
  // Over the quad's lanes.
  template <class T>
  __device__ __forceinline__ T sum(T x) const {
#pragma unroll
    for (int apart = 1; apart < lanes; apart *= 2) x += __shfl_xor_sync(kWarp, x, apart);
    return x;
  }
  __device__ __forceinline__ float max(float x) const {
#pragma unroll
    for (int apart = 1; apart < lanes; apart *= 2) x = fmaxf(x, __shfl_xor_sync(kWarp, x, apart));
    return x;
  }
};

// Quads from `first` on whose lists fit when they are joined. keys: in the calling lane's column
// (keys_of_rows).
template <class Lists>
__device__ __forceinline__ Quads quads_that_fit(int first, int keys) {
  const int own = quad_sum(keys);  // a row has fewer than 65536 keys in its four columns
  Quads quads{first, first};
  for (int sum[2] = {}; quads.end < kQuads; ++quads.end) {
    const int next = __shfl_sync(kWarp, own, 4 * quads.end);
    sum[0] += next & 0xFFFF;
    sum[1] += second_of(next);
    if (full_batches(sum[0]) + full_batches(sum[1]) > Lists::kMost) break;
  }
  return quads;
}

// Where each lane's keys lie in the joined lists. keys: how many it has, as of keys_of_rows. start, length:
// of the lists of the quad's rows.
struct JoinedPlaces {
  int next[2];  // of the lane's first key of each row

  __device__ __forceinline__ JoinedPlaces(const Share& share, int keys, EntryRange (&ranges)[2],
                                          int (&start)[2], int (&length)[2]) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    int upto = keys;
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      const int lower = __shfl_up_sync(kWarp, upto, lanes);
      if (lane >= lanes) upto += lower;
    }
    const int total = __shfl_sync(kWarp, upto, 31), before = upto - keys;
    ranges[0] = {0, total & 0xFFFF};
    ranges[1].first = full_batches(ranges[0].end);
    ranges[1].end = ranges[1].first + second_of(total);
    next[0] = before & 0xFFFF;
    next[1] = ranges[1].first + second_of(before);
    const int behind[2] = {next[0] + (keys & 0xFFFF), next[1] + second_of(keys)};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      start[half] = __shfl_sync(kWarp, next[half], share.lane_of_warp(0));
      length[half] = __shfl_sync(kWarp, behind[half], share.lane_of_warp(share.lanes - 1)) - start[half];
    }
  }
};

// Joins lists. keys: how many each lane puts there, as of keys_of_rows. visit(put) calls put(half, key) for
// each of them. start, length: of the lists of the quad's rows.
template <int kMost, class Visit>
__device__ __forceinline__ void join(const Share& share, int keys, const Visit& visit, int (&listed)[kMost],
                                     EntryRange (&ranges)[2], int (&start)[2], int (&length)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  JoinedPlaces places(share, keys, ranges, start, length);
  visit([&](int half, int key) {
    const int at = half == 0 ? places.next[0]++ : places.next[1]++;
    listed[at] = entry_of(key, share.quad);
  });
#pragma unroll
  for (const EntryRange& range : ranges) {
    const int padding = range.end + lane;
    if (padding < full_batches(range.end)) listed[padding] = 0;
  }
  __syncwarp();  // listed is there; and all columns have been read: score_exactly writes scores in their
                 // bytes
}

// Joins the columns, which are all in shared memory.
template <class Lists>
__device__ __forceinline__ void join_columns(const SpillSlots&, Lists& lists, const AllQuads& quads,
                                             const Share& share, int (&listed)[Lists::kMost],
                                             EntryRange (&ranges)[2], int (&start)[2], int (&length)[2]) {
  join(
      share, quads.keys,
      [&](const auto& put) { visit_tiles(lists, bits_of_open_rows(lists, share.quad), share.lane, put); },
      listed, ranges, start, length);
}

// The tiles of a column in the warp's slot that the calling lane takes: [begin, end).
struct PartOfColumn {
  int column, begin, end;

  template <class Lists>
  __device__ __forceinline__ PartOfColumn(const Lists& lists, const Quads& /*quads*/, const Share& share) {
    const int parts = share.lanes / 4, part = share.lane % parts;
    column = 4 * share.quad + share.lane / parts;
    const int tiles = share.works ? lists.spilled[column] : 0;
    begin = tiles * part / parts;
    end = tiles * (part + 1) / parts;
  }
  template <class Lists>
  __device__ __forceinline__ PartOfColumn(const Lists& lists, const Chunk& chunk, const Share& share)
      : PartOfColumn(lists, static_cast<const Quads&>(chunk), share) {
    const int tiles = end - begin;
    end = begin + tiles * (chunk.chunk + 1) / chunk.chunks;
    begin += tiles * chunk.chunk / chunk.chunks;
  }

  // Keys of open rows there, as of keys_of_rows. column_tiles: of tiles_in. open: of bits_of_open_rows.
  __device__ __forceinline__ int keys(const int2* column_tiles, uint32_t open) const {
    int sum = 0;
#pragma unroll 8
    for (int i = begin; i < end; ++i)
      sum += keys_of_rows(static_cast<uint32_t>(column_tiles[32 * i].x) & open);
    return sum;
  }
};

// Joins the columns of Quads or of a Chunk, which are all in the warp's slot: a lane takes part of a column.
template <class Lists, class SomeQuads>
__device__ __forceinline__ void join_columns(const SpillSlots& slots, Lists& lists, const SomeQuads& quads,
                                             const Share& share, int (&listed)[Lists::kMost],
                                             EntryRange (&ranges)[2], int (&start)[2], int (&length)[2]) {
  const PartOfColumn taken(lists, quads, share);
  const int column = taken.column, begin = taken.begin, end = taken.end;
  const uint32_t open = bits_of_open_rows(lists, share.quad);
  const int2* const spilled = tiles_in(slots, lists.slot, column);
  join(
      share, taken.keys(spilled, open),
      [&](const auto& put) {
        for (int i = begin; i < end; i += Lists::kPairs) {
          take_back(lists, spilled + int64_t{32} * i, end - i);
          visit_tiles(lists, open, column, put);
        }
      },
      listed, ranges, start, length);
}

}  // namespace splash::gpu::entmax::hopper
