// The column pass: dV = sum p dO, dK = sum ds q, over the entries of each key in the order of their rows. A
// block takes as many keys as have so many entries, and each of its groups of lanes as many entries as any
// other; a key that several groups hold is summed in their order. Keys with more than kLongColumn entries are
// left to blocks that take a range of the rows each, so that a key that all queries attend to costs no more
// than others.

#include <algorithm>

#include "gpu/entmax/backward/group.cuh"
#include "gpu/entmax/backward/launch.cuh"
#include "gpu/entmax/backward/row_gradient.cuh"
#include "gpu/entmax/scan.cuh"

namespace splash::gpu::entmax::backward {
namespace {

constexpr int kColumnThreads = 128;
constexpr int kMostEntries = kColumnTile - 1 + kLongColumn;  // of a tile

// Entries before the key's, over all keys.
__device__ uint32_t begin_of(const Problem& p, uint32_t key) {
  return key < p.keys ? p.key_blocks[key / kKeyBlock] + p.key_places[key]
                      : p.key_blocks[(p.keys + kKeyBlock - 1) / kKeyBlock];
}

// The first key of a tile: those before it and their entries are tile * kColumnTile or more. A warp looks for
// it together.
__device__ uint32_t first_key_of(const Problem& p, uint64_t tile) {
  const uint32_t lane = threadIdx.x % 32;
  uint32_t low = 0, high = p.keys;
  while (low < high) {
    const uint32_t step = (high - low + 31) / 32, key = low + lane * step;
    const bool before = key < high && uint64_t{begin_of(p, key)} + key < tile * kColumnTile;
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

  // In shared or global memory: four vectors a lane, those of one number side by side.
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

// The groups of a block, and what they add up.
template <class T, int kLanes>
struct Columns {
  static constexpr int kGroups = kColumnThreads / kLanes;
  static constexpr int kFlight = std::is_same_v<T, float> ? 2 : 4;  // entries whose rows are in flight

  const Problem& p;
  Group<T, kLanes> lanes{p};
  int group = threadIdx.x / kLanes;
  const char *gradients = lanes.part_of(p.d_out), *queries = lanes.part_of(p.q), *values = lanes.part_of(p.v);

  __device__ explicit Columns(const Problem& problem) : p(problem) {}

  __device__ void write(uint32_t key, const ColumnSum& sum) const {
    lanes.store(p.d_v, key, sum.v);
    lanes.store(p.d_k, key, sum.k);
  }

  // Calls add(entry, p, dO, ds, q) for the group's entries [begin, end), one after the other. most: the
  // entries of the group that has most, for all take the same number of steps; last: the block's last entry,
  // which a group without more reads in vain. key_at: an entry's key.
  template <class KeyAt, class Add>
  __device__ void for_entries(const Entry* entries, uint32_t begin, uint32_t end, uint32_t most,
                              uint32_t last, const KeyAt& key_at, const Add& add) const {
#pragma unroll 1
    for (uint32_t base = begin; base < begin + most; base += kFlight) {
      Packed<T> d_out[kFlight], v[kFlight], q[kFlight];
#pragma unroll
      for (int i = 0; i < kFlight; ++i) {
        const uint32_t at = min(base + i, last);
        d_out[i] = lanes.load(gradients, entries[at].row);
        v[i] = lanes.load(values, key_at(at));
      }
      const Entry own = entries[min(base + lanes.template owned<kFlight>(), last)];
      const RowFacts facts = p.facts[own.row];
      float products[kFlight] = {};
#pragma unroll
      for (int i = 0; i < kFlight; ++i) {
        float x[8], y[8];
        unpack(d_out[i], x);
        unpack(v[i], y);
#pragma unroll
        for (int d = 0; d < 8; ++d) products[i] = fmaf(x[d], y[d], products[i]);
        if (!lanes.active()) products[i] = 0;
      }
#pragma unroll
      for (int i = 0; i < kFlight; ++i) {
        q[i] = lanes.load(queries, entries[min(base + i, last)].row);
        keep_packed(d_out[i]);
      }
      const float g = lanes.sum_for_owner(products);
      const Entmax entmax(facts.alpha);
      const RowGradient gradient(p, entmax, facts);
      const Weights x = entmax(own.excess);
      const float own_p = gradient.probability(x), own_ds = gradient.score(x, g);
#pragma unroll
      for (int i = 0; i < kFlight; ++i) {
        const float p_of = lanes.template from_owner<kFlight>(own_p, i),
                    ds_of = lanes.template from_owner<kFlight>(own_ds, i);
        if (base + i < end) add(base + i, p_of, d_out[i], ds_of, q[i]);
      }
    }
  }
};

template <class T, int kLanes>
__global__ void __launch_bounds__(kColumnThreads, 5) sum_columns(const __grid_constant__ Problem p) {
  wait_for_kernels_before();
  using Block = Columns<T, kLanes>;
  constexpr int kGroups = Block::kGroups;
  constexpr uint32_t kNone = 0xFFFF;
  __shared__ uint32_t ends[2];                  // the tile's first key, and the next one's
  __shared__ uint32_t begins[kColumnTile + 1];  // of the tile's keys, among its entries
  __shared__ Entry arrived[kMostEntries], entries[kMostEntries];
  __shared__ uint16_t keys[kMostEntries + 1];    // of entries, in the tile
  __shared__ float4 heads[kGroups][4 * kLanes];  // sums of keys that the group has from the group before
  const Block block(p);
  const int warp = threadIdx.x / 32;
  const uint64_t tiles = (uint64_t{begin_of(p, p.keys)} + p.keys - 1) / kColumnTile + 1;

  for (uint64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    if (warp < 2) {
      const uint32_t key = first_key_of(p, tile + warp);
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
    const uint32_t count = begins[key_count];

    // Each key's entries in the order of their rows.
    for (uint32_t i = threadIdx.x; i < count; i += kColumnThreads) arrived[i] = p.entries[first_entry + i];
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < count; i += kColumnThreads) {
      uint32_t key = 0;  // the last one that begins at i or before
#pragma unroll
      for (uint32_t step = kColumnTile / 2; step >= 1; step /= 2) {
        if (key + step < key_count && begins[key + step] <= i) key += step;
      }
      const Entry entry = arrived[i];
      uint32_t place = begins[key];
      for (uint32_t other = begins[key]; other < begins[key + 1]; ++other)
        place += arrived[other].row < entry.row ? 1 : 0;
      entries[place] = entry;
      keys[place] = static_cast<uint16_t>(key);
    }
    if (threadIdx.x == 0) keys[count] = kNone;
    __syncthreads();

    const uint32_t run = (count + kGroups - 1) / kGroups, begin = min(block.group * run, count),
                   end = min(begin + run, count);
    ColumnSum sum;
    uint32_t key = keys[begin];
    const auto begun_before = [&] { return begin > 0 && keys[begin - 1] == key; };
    const auto finish_key = [&] {
      if (begun_before()) {
        sum.template put<kLanes>(heads[block.group], block.lanes.lane);
      } else {
        block.write(first_key + key, sum);
      }
    };
    block.for_entries(
        entries, begin, end, run, count - 1, [&](uint32_t entry) { return first_key + keys[entry]; },
        [&](uint32_t entry, float p_of, const Packed<T>& d_out, float ds, const Packed<T>& q) {
          if (keys[entry] != key) {
            finish_key();
            key = keys[entry];
            sum = {};
          }
          sum.add(p_of, d_out, ds, q);
        });
    const bool goes_on = begin < end && keys[end] == key;  // the groups after this one hold the rest
    if (begin < end && (!goes_on || begun_before())) finish_key();
    __syncthreads();

    if (goes_on && !begun_before()) {
      for (int next = block.group + 1;; ++next) {
        sum.template add<kLanes>(heads[next], block.lanes.lane);
        if (keys[min((next + 1) * run, count)] != key) break;
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

// The rows that may attend to a key, in as many parts as there is room for partial sums.
struct RowParts {
  uint32_t rows, windows, count;  // of a key; of a part, kRowWindow rows each; parts

  __device__ RowParts(const Problem& p, uint32_t columns) : rows(p.group * p.q_len) {
    const uint32_t all = (rows + kRowWindow - 1) / kRowWindow, most = max(p.long_parts / columns, 1u);
    windows = (all + most - 1) / most;
    count = (all + windows - 1) / windows;
  }
};

template <int kLanes>
__device__ float4* partial_of(const Problem& p, uint32_t part) {
  return reinterpret_cast<float4*>(p.partials) + part * (4 * kLanes);
}

// A block takes a part of the rows that attend to a key. It looks through all of the key's entries for those
// of a window of rows, which so come in order.
template <class T, int kLanes>
__global__ void __launch_bounds__(kColumnThreads, 5) sum_long_columns(const __grid_constant__ Problem p) {
  wait_for_kernels_before();
  using Block = Columns<T, kLanes>;
  constexpr int kGroups = Block::kGroups;
  constexpr int kRowsAThread = kRowWindow / kColumnThreads;
  __shared__ float window[kRowWindow];  // the rows' excess; 0: the row does not attend to the key
  __shared__ Entry entries[kRowWindow];
  __shared__ float4 sums[kGroups][4 * kLanes];
  const uint32_t columns = p.counters->long_columns;
  if (columns == 0) return;
  const Block block(p);
  const RowParts parts(p, columns);
  for (uint32_t item = blockIdx.x; item < columns * parts.count; item += gridDim.x) {
    const uint32_t key = p.long_columns[item / parts.count], first = begin_of(p, key),
                   last = begin_of(p, key + 1);
    const uint32_t from = item % parts.count * parts.windows * kRowWindow,
                   to = min(from + parts.windows * kRowWindow, parts.rows);
    ColumnSum sum;
    for (uint32_t row = from; row < to; row += kRowWindow) {
      const uint32_t first_row = key / p.kv_len * parts.rows + row;
#pragma unroll
      for (int i = 0; i < kRowsAThread; ++i) window[i * kColumnThreads + threadIdx.x] = 0;
      __syncthreads();
#pragma unroll 4
      for (uint32_t i = first + threadIdx.x; i < last; i += kColumnThreads) {
        const Entry entry = p.entries[i];
        if (entry.row - first_row < kRowWindow) window[entry.row - first_row] = entry.excess;
      }
      __syncthreads();
      float mine[kRowsAThread];
      uint32_t attending = 0, count;
#pragma unroll
      for (int i = 0; i < kRowsAThread; ++i) {
        mine[i] = window[kRowsAThread * threadIdx.x + i];
        attending += mine[i] != 0 ? 1 : 0;
      }
      uint32_t place = exclusive_sum<kColumnThreads>(attending, count);
#pragma unroll
      for (int i = 0; i < kRowsAThread; ++i) {
        if (mine[i] != 0) entries[place++] = {first_row + kRowsAThread * threadIdx.x + i, mine[i]};
      }
      __syncthreads();
      const uint32_t run = (count + kGroups - 1) / kGroups, begin = min(block.group * run, count),
                     end = min(begin + run, count);
      block.for_entries(
          entries, begin, end, run, count - 1, [&](uint32_t) { return key; },
          [&](uint32_t, float p_of, const Packed<T>& d_out, float ds, const Packed<T>& q) {
            sum.add(p_of, d_out, ds, q);
          });
    }
    sum.template put<kLanes>(sums[block.group], block.lanes.lane);
    __syncthreads();
    if (block.group == 0) {
      ColumnSum all;
      for (int i = 0; i < kGroups; ++i) all.template add<kLanes>(sums[i], block.lanes.lane);
      if (parts.count == 1) {
        block.write(key, all);
      } else {
        all.template put<kLanes>(partial_of<kLanes>(p, item), block.lanes.lane);
      }
    }
    __syncthreads();  // sums may be written again
  }
}

// A group a key: the sum of its parts.
template <class T, int kLanes>
__global__ void __launch_bounds__(kColumnThreads) finish_long_columns(const __grid_constant__ Problem p) {
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

void compute_columns(const Problem& p, Dtype dtype, StreamHandle stream) {
  const auto tiles = static_cast<uint64_t>((p.support.capacity + p.keys - 1) / kColumnTile + 1);
  for_element_and_lanes(dtype, p.head_dim, [&]<class T, int kLanes>() {
    launch("sum_columns", sum_columns<T, kLanes>,
           static_cast<unsigned>(std::min<uint64_t>(tiles, kMostBlocks)), kColumnThreads, stream, p);
    if (p.support.capacity <= kLongColumn) return;
    launch("sum_long_columns", sum_long_columns<T, kLanes>, p.long_parts, kColumnThreads, stream, p);
    // A key that has parts has two or more.
    const unsigned groups = p.long_parts / 2, blocks = groups * kLanes / kColumnThreads + 1;
    launch("finish_long_columns", finish_long_columns<T, kLanes>, blocks, kColumnThreads, stream, p);
  });
}

}  // namespace splash::gpu::entmax::backward
