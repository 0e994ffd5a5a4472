// The column pass over the entries sorted by key: dV = sum p dO, dK = sum ds q. Every group of lanes takes as
// many entries as any other, so that a key that all queries attend to costs no more than others. A key whose
// entries several groups hold is summed in the order of the groups, in shared memory where they are of one
// tile (block), else through partial sums that finish_columns adds in the order of the tiles.

#include <algorithm>

#include "gpu/entmax/backward/group.cuh"
#include "gpu/entmax/backward/launch.cuh"

namespace splash::gpu::entmax::backward {
namespace {

constexpr int kColumnThreads = 256, kColumnWarps = kColumnThreads / 32;
constexpr uint32_t kZeroKeys = 128;  // keys a warp looks through for such without an entry

// A lane's part of a key's dV and dK.
struct ColumnSum {
  float v[8] = {}, k[8] = {};

  template <class T>
  __device__ void add(const Entry& entry, const Packed<T>& d_out, const Packed<T>& q) {
    float x[8];
    unpack(d_out, x);
#pragma unroll
    for (int d = 0; d < 8; ++d) v[d] = fmaf(entry.p, x[d], v[d]);
    unpack(q, x);
#pragma unroll
    for (int d = 0; d < 8; ++d) k[d] = fmaf(entry.ds, x[d], k[d]);
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

template <class T, int kLanes>
__device__ void write_column(const Problem& p, const Group<T, kLanes>& lanes, uint32_t key,
                             const ColumnSum& sum) {
  lanes.store(p.d_v, key, sum.v);
  lanes.store(p.d_k, key, sum.k);
  if (lanes.lane == 0) p.present[key] = 1;
}

// Where a tile keeps the sum of a key that it has from the tile before (tail 0) or leaves to the next one
// (1).
template <int kLanes>
__device__ float4* partial_of(const Problem& p, uint32_t tile, int tail) {
  return reinterpret_cast<float4*>(p.partials) + (uint64_t{tile} * 2 + tail) * (4 * kLanes);
}

// Entries [first, first + count) hold nothing but a key of both their neighbours.
__device__ bool is_through(const Entry* first, int count) {
  return first[-1].key == first[count].key && first[0].key != kNoKey;
}

template <class T, int kLanes>
__global__ void __launch_bounds__(kColumnThreads, 3) sum_columns(const __grid_constant__ Problem p) {
  wait_for_kernels_before();
  constexpr int kGroups = kColumnThreads / kLanes, kRun = kColumnTile / kGroups;
  constexpr int kFlight = std::is_same_v<T, float> ? 2 : 4;  // entries whose rows are in flight
  __shared__ Entry with_neighbours[kColumnTile + 2];
  __shared__ float4 heads[kGroups][4 * kLanes];  // sums of keys that the group has from the group before
  const Entry* const entries = with_neighbours + 1;
  const Group<T, kLanes> lanes(p);
  const int group = threadIdx.x / kLanes;
  const Entry* const mine = entries + group * kRun;
  const char *const gradients = lanes.part_of(p.d_out), *const queries = lanes.part_of(p.q);
  const auto count = static_cast<uint32_t>(*p.totals);

  for (uint32_t tile = blockIdx.x; tile * int64_t{kColumnTile} < count; tile += gridDim.x) {
    for (int i = threadIdx.x; i < kColumnTile + 2; i += kColumnThreads) {
      const uint32_t at = tile * kColumnTile + i - 1;  // wraps before the first
      with_neighbours[i] = at < count ? p.entries[p.order[at]] : Entry{kNoKey, 0, 0, 0};
    }
    __syncthreads();

    ColumnSum sum;
    uint32_t key = mine[0].key;
    const auto begun_before = [&] { return mine[-1].key == key; };
    const auto finish_key = [&] {
      if (key == kNoKey) return;
      if (begun_before()) {
        sum.put<kLanes>(heads[group], lanes.lane);
      } else {
        write_column(p, lanes, key, sum);
      }
    };
#pragma unroll 1
    for (int base = 0; base < kRun; base += kFlight) {
      Packed<T> d_out[kFlight], q[kFlight];
#pragma unroll
      for (int i = 0; i < kFlight; ++i) {  // what stands past the end names row 0
        d_out[i] = lanes.load(gradients, mine[base + i].row);
        q[i] = lanes.load(queries, mine[base + i].row);
      }
#pragma unroll
      for (int i = 0; i < kFlight; ++i) {
        const Entry entry = mine[base + i];
        if (entry.key != key) {
          finish_key();
          key = entry.key;
          sum = {};
        }
        sum.add(entry, d_out[i], q[i]);
      }
    }
    const bool goes_on = mine[kRun].key == key && key != kNoKey;
    if (!goes_on || begun_before()) finish_key();
    __syncthreads();

    if (goes_on && !begun_before()) {  // the groups after this one hold the rest
      int next = group + 1;
      for (; next < kGroups; ++next) {
        sum.add<kLanes>(heads[next], lanes.lane);
        if (!is_through(entries + next * kRun, kRun)) break;
      }
      if (next < kGroups) {
        write_column(p, lanes, key, sum);
      } else {
        sum.put<kLanes>(partial_of<kLanes>(p, tile, 1), lanes.lane);
        if (lanes.lane == 0) p.present[key] = 1;
      }
    }
    if (group == 0 && entries[-1].key == entries[0].key) {
      ColumnSum head;
      for (int next = 0; next < kGroups; ++next) {
        head.add<kLanes>(heads[next], lanes.lane);
        if (!is_through(entries + next * kRun, kRun)) break;
      }
      head.put<kLanes>(partial_of<kLanes>(p, tile, 0), lanes.lane);
    }
    if (threadIdx.x == 0) {
      const uint32_t last = entries[kColumnTile - 1].key;
      const bool through = is_through(entries, kColumnTile);
      p.links[tile] = {entries[kColumnTile].key == last && !through ? last : kNoKey, through};
    }
    __syncthreads();  // the shared arrays may be written again
  }
}

// A warp a tile: the key that the tile leaves to the next ones. Then a warp for 128 keys: zeros where a key
// has no entry.
template <class T, int kLanes>
__global__ void __launch_bounds__(kColumnThreads)
    finish_columns(const __grid_constant__ Problem p, const uint32_t tile_warps) {
  wait_for_kernels_before();
  const Group<T, kLanes> lanes(p);
  const uint32_t warp = blockIdx.x * kColumnWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp >= tile_warps) {
    const uint32_t first = (warp - tile_warps) * kZeroKeys;
    uint32_t present = 0;  // 4 keys a lane
    if (first + 4 * lane < p.keys) present = reinterpret_cast<const uint32_t*>(p.present)[first / 4 + lane];
    const ColumnSum zero;
    for (uint32_t i = lane / kLanes; i < kZeroKeys; i += 32 / kLanes) {
      const uint32_t four = __shfl_sync(kWarp, present, i / 4);
      if (first + i >= p.keys || (four >> i % 4 * 8 & 0xFF) != 0) continue;
      lanes.store(p.d_v, first + i, zero.v);
      lanes.store(p.d_k, first + i, zero.k);
    }
    return;
  }
  const auto tiles = (static_cast<uint32_t>(*p.totals) + kColumnTile - 1) / kColumnTile;
  for (uint32_t tile = warp; tile < tiles; tile += tile_warps) {
    const uint32_t key = p.links[tile].tail;
    if (key == kNoKey) continue;
    uint32_t end = tile + 1, ends;  // end: past the last tile with entries of the key
    do {
      ends = __ballot_sync(kWarp, end + lane >= tiles || p.links[end + lane].through == 0);
      end += ends == 0 ? 32 : __ffs(ends);
    } while (ends == 0);
    ColumnSum sum;
    if (lane < kLanes) sum.add<kLanes>(partial_of<kLanes>(p, tile, 1), lanes.lane);
#pragma unroll 4
    for (uint32_t next = tile + 1 + lane / kLanes; next < end; next += 32 / kLanes)
      sum.add<kLanes>(partial_of<kLanes>(p, next, 0), lanes.lane);
#pragma unroll
    for (int step = kLanes; step < 32; step *= 2) {
#pragma unroll
      for (int d = 0; d < 8; ++d) {
        sum.v[d] += __shfl_xor_sync(kWarp, sum.v[d], step);
        sum.k[d] += __shfl_xor_sync(kWarp, sum.k[d], step);
      }
    }
    if (lane < kLanes) write_column(p, lanes, key, sum);
  }
}

}  // namespace

void compute_columns(const Problem& p, Dtype dtype, StreamHandle stream) {
  const auto tiles = static_cast<unsigned>((p.support.capacity + kColumnTile - 1) / kColumnTile);
  const uint32_t tile_warps = std::min<uint32_t>(tiles, 4 * kMostBlocks),
                 key_warps = (p.keys + kZeroKeys - 1) / kZeroKeys;
  for_element_and_lanes(dtype, p.head_dim, [&]<class T, int kLanes>() {
    if (tiles > 0) {
      launch("sum_columns", sum_columns<T, kLanes>, std::min<unsigned>(tiles, kMostBlocks), kColumnThreads,
             stream, p);
    }
    const unsigned blocks = (tile_warps + key_warps + kColumnWarps - 1) / kColumnWarps;
    launch("finish_columns", finish_columns<T, kLanes>, blocks, kColumnThreads, stream, p, tile_warps);
  });
}

}  // namespace splash::gpu::entmax::backward
