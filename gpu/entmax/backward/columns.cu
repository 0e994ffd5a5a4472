// The column pass: dV = sum p dO, dK = sum ds q, over the entries of each key in the order of their rows. A
// block takes a tile: consecutive keys whose keys and entries, counted together, number about kColumnTile.
// The block's groups of lanes share the tile's entries evenly; where a key's entries span several groups,
// their partial sums are added in the order of the groups. Keys with more than kLongColumn entries are
// deferred to sum_long_columns, whose blocks each take a range of the rows, so that a key that all queries
// attend to costs no more than others.

#include <algorithm>

#include "gpu/entmax/backward/entry.cuh"
#include "gpu/entmax/backward/group.cuh"
#include "gpu/entmax/schedule/launch.cuh"
#include "gpu/entmax/schedule/scan.cuh"

namespace splash::gpu::entmax::backward {
namespace {

constexpr int kColumnThreads = 128, kColumnBlocks = 5;       // per SM
constexpr int kMostEntries = kColumnTile - 1 + kLongColumn;  // of a tile

// How many entries come before the key's, over all keys.
__device__ uint32_t begin_of(const BackwardProblem& p, uint32_t key) {
  return key < p.keys ? p.key_blocks[key / kKeyBlock] + p.key_places[key]
                      : p.key_blocks[(p.keys + kKeyBlock - 1) / kKeyBlock];
}

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

// A lane's part of a key's dV and dK.
struct ColumnSum {
  float v[8] = {}, k[8] = {};

  template <class T>
  __device__ void add(float p, const Packed<T>& d_out, float ds, const Packed<T>& q) {
    float x[8];
    unpack(d_out, x);
#pragma unroll
    for (int d = 0; d < 8; ++d) v[d] = fmaf(p, x[d], v[d]);
    unpack(q, x);
#pragma unroll
    for (int d = 0; d < 8; ++d) k[d] = fmaf(ds, x[d], k[d]);
  }

  // Sets the sums to 0 by an AND with threadIdx.y, which is 0 as blocks have one dimension. (After a plain
  // assignment the compiler would keep the zeros in other registers and copy every sum after every entry.)
  __device__ void clear() {
    const uint32_t none = threadIdx.y;
#pragma unroll
    for (int d = 0; d < 8; ++d) {
      v[d] = __uint_as_float(__float_as_uint(v[d]) & none);
      k[d] = __uint_as_float(__float_as_uint(k[d]) & none);
    }
  }

  // to, from: shared or global memory. A lane has four float4 there; the lanes' i-th ones lie side by side.
  template <int kLanes>
  __device__ void put(float4* to, int lane) const {
    to[lane] = {v[0], v[1], v[2], v[3]};
    to[kLanes + lane] = {v[4], v[5], v[6], v[7]};
    to[2 * kLanes + lane] = {k[0], k[1], k[2], k[3]};
    to[3 * kLanes + lane] = {k[4], k[5], k[6], k[7]};
  }
  template <int kLanes>
  __device__ void add(const float4* from, int lane) {
    float* const sums[4] = {v, v + 4, k, k + 4};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 x = from[i * kLanes + lane];
      sums[i][0] += x.x;
      sums[i][1] += x.y;
      sums[i][2] += x.z;
      sums[i][3] += x.w;
    }
  }
};

// An entry as the groups of a block read it; all lanes of a group read the same one at once.
struct alignas(16) Placed {
  Entry entry;   // its row over all heads
  uint32_t key;  // in the tile
};
constexpr uint32_t kNoKey = 0xFFFFFFFF;  // of the padding behind the last entry, which is loaded but not used

// The groups of a block, and how they walk through entries.
template <class T, int kLanes>
struct Columns {
  static constexpr int kGroups = kColumnThreads / kLanes;
  static constexpr int kFlight = std::is_same_v<T, float> ? 2 : 4;  // entries whose rows are in flight

  const BackwardProblem& p;
  Group<T, kLanes> lanes{p};
  uint32_t group = threadIdx.x / kLanes;
  const char *gradients = lanes.part_of(p.d_out), *queries = lanes.part_of(p.q);

  __device__ explicit Columns(const BackwardProblem& problem) : p(problem) {}

  __device__ void write(uint32_t key, const ColumnSum& sum) const {
    lanes.store(p.d_v, key, sum.v);
    lanes.store(p.d_k, key, sum.k);
  }

  // The group's share of a block's entries: whole flights (kFlight entries), as many as every other group's
  // until the entries end.
  struct Run {
    uint32_t most, begin, end;  // most: entries of the largest share
  };
  __device__ Run run_of(uint32_t count) const {
    const uint32_t most = (count + kGroups * kFlight - 1) / (kGroups * kFlight) * kFlight,
                   begin = min(group * most, count);
    return {most, begin, min(begin + most, count)};
  }
  // Pads a block's `count` entries by one flight, so that the last flight is whole.
  __device__ static void end_entries(Placed* entries, uint32_t count) {
    if (threadIdx.x < kFlight) entries[count + threadIdx.x] = {{0, 0, 0}, kNoKey};
  }

  // Calls add(entry, dO, q) for the entries of the run, one after the other, and for the padding that
  // completes the last flight.
  template <class Add>
  __device__ void for_entries(const Placed* entries, const Run& run, const Add& add) const {
#pragma unroll 1
    for (uint32_t base = run.begin; base < run.end; base += kFlight) {
      Packed<T> d_out[kFlight], q[kFlight];
#pragma unroll
      for (int i = 0; i < kFlight; ++i) {
        const uint32_t row = entries[base + i].entry.row;
        d_out[i] = lanes.load(gradients, row);
        q[i] = lanes.load(queries, row);
      }
#pragma unroll
      for (int i = 0; i < kFlight; ++i) add(entries[base + i], d_out[i], q[i]);
    }
  }
};

template <class T, int kLanes>
__global__ void __launch_bounds__(kColumnThreads, kColumnBlocks)
    sum_columns(const __grid_constant__ BackwardProblem p) {
  wait_for_kernels_before();
  using Block = Columns<T, kLanes>;
  constexpr int kGroups = Block::kGroups;
  __shared__ uint32_t ends[2];                  // the tile's first key, and the next one's
  __shared__ uint32_t begins[kColumnTile + 1];  // of the tile's keys, among its entries
  __shared__ uint32_t rows[kMostEntries];       // of the entries, in order of arrival
  __shared__ Placed entries[kMostEntries + Block::kFlight];
  __shared__ float4 heads[kGroups][4 * kLanes];  // the group's sum of the key that an earlier group began
  const Block block(p);
  const StoredEntry<T>* const arrived = entries_of<T>(p);
  const uint32_t warp = threadIdx.x / 32;
  const uint64_t tiles = (uint64_t{begin_of(p, p.keys)} + p.keys - 1) / kColumnTile + 1;

  for (uint64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
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
    if (key_count > 0 && begins[key_count] - begins[key_count - 1] > kLongColumn) {
      --key_count;
      if (threadIdx.x == 0) p.long_columns[atomicAdd(&p.counters->long_columns, 1u)] = first_key + key_count;
    }
    const uint32_t count = begins[key_count],
                   first_step = 0x80000000u >> __clz(static_cast<int>(key_count | 1));

    // Sort each key's entries by row.
    for (uint32_t i = threadIdx.x; i < count; i += kColumnThreads)
      rows[i] = arrived[first_entry + i].entry(p).row;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < count; i += kColumnThreads) {
      uint32_t key = 0;  // the last key that begins at i or before
      for (uint32_t step = first_step; step >= 1; step /= 2) {
        if (key + step < key_count && begins[key + step] <= i) key += step;
      }
      Entry entry = arrived[first_entry + i].entry(p);
      uint32_t place = begins[key];
      for (uint32_t other = begins[key]; other < begins[key + 1]; ++other)
        place += (rows[other] - entry.row) >> 31;  // 1 where it is less: rows are below 2^31
      entry.row += (first_key + key) / p.kv_len * p.rows_a_key;
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
}

// The rows that may attend to a key, cut into as many parts as there is room for partial sums.
struct RowParts {
  uint32_t windows, count;  // per part, of kRowWindow rows each; parts

  __device__ RowParts(const BackwardProblem& p, uint32_t columns) {
    const uint32_t all = (p.rows_a_key + kRowWindow - 1) / kRowWindow, most = max(p.long_parts / columns, 1u);
    windows = (all + most - 1) / most;
    count = (all + windows - 1) / windows;
  }
};

template <int kLanes>
__device__ float4* partial_of(const BackwardProblem& p, uint32_t part) {
  return reinterpret_cast<float4*>(p.partials) + part * (4 * kLanes);
}

// A block takes one part of the rows that may attend to a key. For each window of rows in it, the block scans
// all of the key's entries and keeps those of the window, indexed by row; so they are summed in order.
template <class T, int kLanes>
__global__ void __launch_bounds__(kColumnThreads, kColumnBlocks)
    sum_long_columns(const __grid_constant__ BackwardProblem p) {
  wait_for_kernels_before();
  using Block = Columns<T, kLanes>;
  constexpr int kGroups = Block::kGroups;
  constexpr int kRowsAThread = kRowWindow / kColumnThreads;
  constexpr int kScanned = 16;  // entries of a thread in flight: a key that all rows attend to has thousands
  __shared__ float2
      window[kRowWindow];  // p and ds; both 0: the row does not attend to the key, or adds nothing
  __shared__ Placed entries[kRowWindow + Block::kFlight];
  __shared__ float4 sums[kGroups][4 * kLanes];
  const uint32_t columns = p.counters->long_columns;
  if (columns == 0) return;
  const Block block(p);
  const RowParts parts(p, columns);
  for (uint32_t item = blockIdx.x; item < columns * parts.count; item += gridDim.x) {
    const uint32_t key = p.long_columns[item / parts.count], first = begin_of(p, key),
                   last = begin_of(p, key + 1), first_of_head = key / p.kv_len * p.rows_a_key;
    const uint32_t from = item % parts.count * parts.windows * kRowWindow,
                   to = min(from + parts.windows * kRowWindow, p.rows_a_key);
    ColumnSum sum;
    for (uint32_t first_row = from; first_row < to; first_row += kRowWindow) {
#pragma unroll
      for (int i = 0; i < kRowsAThread; ++i) window[i * kColumnThreads + threadIdx.x] = {};
      __syncthreads();
      for (uint32_t i = first + threadIdx.x; i < last; i += kScanned * kColumnThreads) {
        StoredEntry<T> scanned[kScanned];
#pragma unroll
        for (int j = 0; j < kScanned; ++j)
          scanned[j] = entries_of<T>(p)[min(i + j * kColumnThreads, last - 1)];
#pragma unroll
        for (int j = 0; j < kScanned; ++j) {
          const Entry entry = scanned[j].entry(p);
          if (i + j * kColumnThreads < last && entry.row - first_row < kRowWindow)
            window[entry.row - first_row] = {entry.p, entry.ds};
        }
      }
      __syncthreads();
      float2 mine[kRowsAThread];
      const auto counts = [](float2 entry) { return entry.x != 0 || entry.y != 0; };
      uint32_t attending = 0, count;
#pragma unroll
      for (int i = 0; i < kRowsAThread; ++i) {
        mine[i] = window[kRowsAThread * threadIdx.x + i];
        attending += counts(mine[i]) ? 1 : 0;
      }
      uint32_t place = exclusive_sum<kColumnThreads>(attending, count);
      const uint32_t first_mine = first_of_head + first_row + kRowsAThread * threadIdx.x;
#pragma unroll
      for (int i = 0; i < kRowsAThread; ++i) {
        if (counts(mine[i])) entries[place++] = {{first_mine + i, mine[i].x, mine[i].y}, 0};
      }
      block.end_entries(entries, count);
      __syncthreads();
      block.for_entries(entries, block.run_of(count),
                        [&](const Placed& placed, const auto& d_out, const auto& q) {
                          if (placed.key != kNoKey) sum.add(placed.entry.p, d_out, placed.entry.ds, q);
                        });
    }
    sum.template put<kLanes>(sums[block.group], block.lanes.lane);
    __syncthreads();
    if (block.group == 0) {
      ColumnSum total;
      for (int i = 0; i < kGroups; ++i) total.template add<kLanes>(sums[i], block.lanes.lane);
      if (parts.count == 1) {
        block.write(key, total);
      } else {
        total.template put<kLanes>(partial_of<kLanes>(p, item), block.lanes.lane);
      }
    }
    __syncthreads();  // sums may be written again
  }
}

// One group per key: sums the key's parts, in order.
template <class T, int kLanes>
__global__ void __launch_bounds__(kColumnThreads)
    finish_long_columns(const __grid_constant__ BackwardProblem p) {
  wait_for_kernels_before();
  const uint32_t columns = p.counters->long_columns;
  if (columns == 0) return;
  const RowParts parts(p, columns);
  if (parts.count == 1) return;
  const Columns<T, kLanes> block(p);
  const uint32_t groups = gridDim.x * block.kGroups;
  for (uint32_t i = blockIdx.x * block.kGroups + block.group; i < columns; i += groups) {
    ColumnSum sum;
#pragma unroll 4
    for (uint32_t part = 0; part < parts.count; ++part)
      sum.template add<kLanes>(partial_of<kLanes>(p, i * parts.count + part), block.lanes.lane);
    block.write(p.long_columns[i], sum);
  }
}

}  // namespace

void compute_columns(const BackwardProblem& p, Dtype dtype, StreamHandle stream) {
  const auto blocks =
      static_cast<unsigned>(std::min<int64_t>((p.support.capacity + p.keys) / kColumnTile + 1, kMostBlocks));
  for_element_and_lanes(dtype, p.head_dim, [&]<class T, int kLanes>() {
    launch("sum_columns", sum_columns<T, kLanes>, blocks, kColumnThreads, stream, p);
    if (p.support.capacity <= kLongColumn) return;
    launch("sum_long_columns", sum_long_columns<T, kLanes>, p.long_parts, kColumnThreads, stream, p);
    // A key that has parts has two or more.
    const unsigned groups = p.long_parts / 2, finish_blocks = groups * kLanes / kColumnThreads + 1;
    launch("finish_long_columns", finish_long_columns<T, kLanes>, finish_blocks, kColumnThreads, stream, p);
  });
}

}  // namespace splash::gpu::entmax::backward
