// The column pass: dV = sum p dO, dK = sum ds q, over the entries of each key in the order of their rows. A
// block takes parts of keys with more than kLongColumn entries (long_columns.cuh), then tiles: consecutive
// keys whose keys and entries, counted together, number about kColumnTile. The block's groups of lanes share
// the tile's entries evenly; where a key's entries span several groups, their partial sums are added in the
// order of the groups.

#include "gpu/entmax/backward/columns.cuh"

#include <algorithm>

#include "gpu/entmax/backward/long_columns.cuh"
#include "gpu/entmax/schedule/launch.cuh"

namespace splash::gpu::entmax::backward {
namespace {

constexpr int kMostEntries = kColumnTile - 1 + kLongColumn;  // of a tile
constexpr uint32_t kFewEntries = 24;                         // of a key: all are compared with one another

// The first key with at least `place` keys and entries, counted together, before it. All lanes of a warp
// search for it together.
__device__ uint32_t first_key_of(const BackwardProblem& p, uint64_t place) {
  const uint32_t lane = threadIdx.x % 32;
  uint32_t low = 0, high = p.keys;
  while (low < high) {
    const uint32_t step = (high - low + 31) / 32, key = low + lane * step;
    const bool before = key < high && uint64_t{begin_of(p, key)} + key < place;
    const auto keys_before = static_cast<uint32_t>(__popc(__ballot_sync(kWarp, before)));
    if (keys_before == 0) return low;
    high = min(low + keys_before * step, high);
    low += (keys_before - 1) * step + 1;
  }
  return low;
}

template <class T, int kLanes>
struct ColumnTile {
  using Block = Columns<T, kLanes>;
  uint32_t ends[2];                  // the tile's first key, and the next one's
  uint32_t begins[kColumnTile + 1];  // of the tile's keys, among its entries
  uint32_t rows[kMostEntries];       // of the entries, in order of arrival
  Placed entries[kMostEntries + Block::kFlight];
  float4 heads[Block::kGroups][4 * kLanes];  // the group's sum of the key that an earlier group began
};

template <class T, int kLanes>
__device__ __forceinline__ void sum_tile(const BackwardProblem& p, const Columns<T, kLanes>& block,
                                         uint64_t tile, ColumnTile<T, kLanes>& shared) {
  constexpr int kGroups = Columns<T, kLanes>::kGroups;
  auto& [ends, begins, rows, entries, heads] = shared;
  const StoredEntry<T>* const arrived = entries_of<T>(p);
  const uint32_t warp = threadIdx.x / 32;
  if (warp < 2) {
    const uint32_t key = first_key_of(p, (tile + warp) * kColumnTile);
    if (threadIdx.x % 32 == 0) ends[warp] = key;
  }
  __syncthreads();
  const uint32_t first_key = ends[0], first_entry = begin_of(p, first_key);
  uint32_t key_count = ends[1] - first_key;
  for (uint32_t i = threadIdx.x; i <= key_count; i += kColumnThreads)
    begins[i] = begin_of(p, first_key + i) - first_entry;
  __syncthreads();
  if (key_count > 0 && begins[key_count] - begins[key_count - 1] > kLongColumn) --key_count;
  const uint32_t count = begins[key_count],
                 first_step = 0x80000000u >> __clz(static_cast<int>(key_count | 1));

  // Sort each key's entries by row. They lie slice after slice.
  for (uint32_t i = threadIdx.x; i < count; i += kColumnThreads)
    rows[i] = arrived[first_entry + i].entry(p).row;
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < count; i += kColumnThreads) {
    uint32_t key = 0;  // the last key that begins at i or before
    for (uint32_t step = first_step; step >= 1; step /= 2) {
      if (key + step < key_count && begins[key + step] <= i) key += step;
    }
    Entry entry = arrived[first_entry + i].entry(p);
    uint32_t first = begins[key], end = begins[key + 1];
    if (end - first > kFewEntries) {  // only those of its slice may be in another order
      const uint32_t slice = entry.row >> p.slice_bits, of_key = first_key + key;
      first = begin_of(p, of_key, slice) - first_entry;
      if (slice + 1 < p.slices) end = begin_of(p, of_key, slice + 1) - first_entry;
    }
    uint32_t place = first;
    for (uint32_t other = first; other < end; ++other)
      place += (rows[other] - entry.row) >> 31;  // 1 where it is less: rows are below 2^31
    entry.row += p.by_kv_len.quotient(first_key + key) * p.rows_a_key;
    entries[place] = {entry, key};
  }
  block.end_entries(entries, count);
  __syncthreads();

  const auto run = block.run_of(count);
  ColumnSum sum;
  uint32_t key = entries[run.begin].key;
  const auto begun_before = [&] { return run.begin > 0 && entries[run.begin - 1].key == key; };
  const auto finish_key = [&] {
    if (begun_before()) {
      sum.template put<kLanes>(heads[block.group], block.lanes.lane);
    } else {
      block.write(first_key + key, sum);
    }
  };
  block.for_entries(entries, run, [&](const Placed& placed, const auto& d_out, const auto& q) {
    if (placed.key != key) {
      finish_key();
      key = placed.key;
      sum.clear();
    }
    sum.add(placed.entry.p, d_out, placed.entry.ds, q);
  });
  // Whether later groups hold the rest of the key's entries.
  const bool goes_on = key != kNoKey && entries[run.end].key == key;
  if (key != kNoKey && (!goes_on || begun_before())) finish_key();
  __syncthreads();

  if (goes_on && !begun_before()) {
    for (uint32_t next = block.group + 1;; ++next) {
      sum.template add<kLanes>(heads[next], block.lanes.lane);
      if (entries[min((next + 1) * run.most, count)].key != key) break;
    }
    block.write(first_key + key, sum);
  }
  const ColumnSum zero;
  for (uint32_t i = block.group; i < key_count; i += kGroups) {
    if (begins[i] == begins[i + 1]) block.write(first_key + i, zero);
  }
  __syncthreads();  // the shared arrays may be written again
}

template <class T, int kLanes>
__global__ void __launch_bounds__(kColumnThreads, kColumnBlocks)
    sum_columns(const __grid_constant__ BackwardProblem p) {
  wait_for_kernels_before();
  __shared__ union {
    ColumnPart<T, kLanes> part;
    ColumnTile<T, kLanes> tile;
  } shared;
  const Columns<T, kLanes> block(p);
  const uint32_t parts = p.counters->column_parts;
  for (uint32_t part = blockIdx.x; part < parts; part += gridDim.x) sum_part(p, block, part, shared.part);
  const uint64_t tiles = (uint64_t{begin_of(p, p.keys)} + p.keys - 1) / kColumnTile + 1;
  const uint32_t behind = gridDim.x - parts % gridDim.x;  // so that blocks with a part less begin
  for (uint64_t tile = (blockIdx.x + behind) % gridDim.x; tile < tiles; tile += gridDim.x)
    sum_tile(p, block, tile, shared.tile);
}

}  // namespace

void compute_columns(const BackwardProblem& p, Dtype dtype, StreamHandle stream) {
  const int64_t work =
      (p.support.capacity + p.keys) / kColumnTile + 1 + most_column_parts(p.support.capacity);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(work, kMostBlocks));
  for_element_and_lanes(dtype, p.head_dim, [&]<class T, int kLanes>() {
    launch("sum_columns", sum_columns<T, kLanes>, blocks, kColumnThreads, stream, p);
  });
}

}  // namespace splash::gpu::entmax::backward
