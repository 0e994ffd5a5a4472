// Finds where each key's entries begin when entries are ordered by key: counts per key and slice of rows,
// prefix sums inside blocks of keys, then over the blocks. Lists the keys and rows that have many entries.
// Sorts the rows of each row tile by length for the row pass.

#include "gpu/entmax/backward/row_parts.cuh"
#include "gpu/entmax/backward/row_tile.cuh"
#include "gpu/entmax/schedule/launch.cuh"
#include "gpu/entmax/schedule/scan.cuh"

namespace splash::gpu::entmax::backward {
namespace {

constexpr int kPlaceThreads = kKeyBlock / 4, kCountThreads = 1024;
constexpr int kLanesARow = 8;  // that count a row's keys
static_assert(kRowTile == 32, "a warp a tile");

// A block counts, in shared memory, the entries that a slice of the rows has in a window of keys, two keys
// per word, and gives each its rank. A warp takes 32 rows at a time.
__global__ void __launch_bounds__(kCountThreads) count_entries(const __grid_constant__ BackwardProblem p) {
  wait_for_kernels_before();
  __shared__ uint32_t counts[kCountKeys / 2];
  if (blockIdx.x == 0 && threadIdx.x == 0) *p.counters = {};
  const uint32_t windows = (p.kv_len + kCountKeys - 1) / kCountKeys;
  const uint32_t window = blockIdx.x % windows, rest = blockIdx.x / windows, slice = rest % p.slices,
                 key_head = rest / p.slices;
  const uint32_t first_key = window * kCountKeys, keys = min(p.kv_len - first_key, uint32_t{kCountKeys});
  for (uint32_t i = threadIdx.x; i < (keys + 1) / 2; i += kCountThreads) counts[i] = 0;
  __syncthreads();

  const auto add = [&](int32_t of_key, int64_t entry) {
    const uint32_t key = static_cast<uint32_t>(of_key) - first_key, shift = key % 2 * 16;
    if (key < keys) p.ranks[entry] = static_cast<uint16_t>(atomicAdd(&counts[key / 2], 1u << shift) >> shift);
  };
  // Counts every `lanes`-th entry of a row, from `entry` on.
  const auto add_row = [&](int64_t first, uint32_t n, uint32_t entry, int lanes) {
    for (; entry < n; entry += 4 * lanes) {
      int32_t key[4];  // in flight together
#pragma unroll
      for (int i = 0; i < 4; ++i) key[i] = p.support.columns[first + min(entry + i * lanes, n - 1)];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (entry + i * lanes < n) add(key[i], first + entry + i * lanes);
      }
    }
  };
  const uint32_t lane = threadIdx.x % 32, end = min((slice + 1) << p.slice_bits, p.rows_a_key);
  for (uint32_t row = (slice << p.slice_bits) + threadIdx.x - lane; row < end; row += kCountThreads) {
    const int64_t own = int64_t{key_head} * p.rows_a_key + row + lane;
    const int64_t pool = row + lane < end ? p.support.offsets[own] : -1;
    const uint32_t count = pool < 0 ? 0 : static_cast<uint32_t>(p.support.counts[own]);
    const bool is_long = count > kLongRow;
#pragma unroll
    for (int i = 0; i < kLanesARow; ++i) {  // 32 / kLanesARow rows at a time
      const int of_row = i * (32 / kLanesARow) + static_cast<int>(lane) / kLanesARow;
      const int64_t first = __shfl_sync(kWarp, pool, of_row);
      add_row(first, __shfl_sync(kWarp, is_long ? 0 : count, of_row), lane % kLanesARow, kLanesARow);
    }
    for (uint32_t left = __ballot_sync(kWarp, is_long); left != 0; left &= left - 1) {
      const int of_row = __ffs(static_cast<int>(left)) - 1;
      const int64_t first = __shfl_sync(kWarp, pool, of_row);
      add_row(first, __shfl_sync(kWarp, count, of_row), lane, 32);
    }
  }
  __syncthreads();
  uint32_t* const of_keys = p.key_places + slice * p.key_stride + key_head * p.kv_len + first_key;
  for (uint32_t i = threadIdx.x; i < keys; i += kCountThreads)
    of_keys[i] = counts[i / 2] >> 16 * (i % 2) & 0xFFFF;
}

// A block of keys: turns their counts into where their entries begin within the block of keys. The block that
// is last does the same for the blocks' sums.
__device__ void place_keys(const BackwardProblem& p, uint32_t block, uint32_t blocks) {
  __shared__ bool last;
  const uint32_t first = block * kKeyBlock + 4 * threadIdx.x;
  uint32_t counts[4] = {};
  const auto for_slices = [&](const auto& use) {
#pragma unroll 4
    for (uint32_t slice = 0; slice < p.slices; ++slice)
      use(*reinterpret_cast<uint4*>(p.key_places + slice * p.key_stride + first));
  };
  if (first < p.keys) {
    for_slices([&](const uint4& of_slice) {
      counts[0] += of_slice.x;
      counts[1] += of_slice.y;
      counts[2] += of_slice.z;
      counts[3] += of_slice.w;
    });
  }
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    if (first + i >= p.keys) counts[i] = 0;  // what pads the last four was not written
    if (counts[i] > kLongColumn) list_long_column(p, first + i, counts[i]);
  }
  uint32_t total;
  uint32_t x = exclusive_sum<kPlaceThreads>(counts[0] + counts[1] + counts[2] + counts[3], total);
  if (first < p.keys) {
    uint32_t y = x + counts[0], z = y + counts[1], w = z + counts[2];
    for_slices([&](uint4& of_slice) {
      const uint4 count = of_slice;
      of_slice = {x, y, z, w};
      x += count.x;
      y += count.y;
      z += count.z;
      w += count.w;
    });
  }
  if (threadIdx.x == 0) {
    p.key_blocks[block] = total;
    __threadfence();
    last = atomicAdd(&p.counters->key_blocks, 1u) == blocks - 1;
    __threadfence();
  }
  __syncthreads();
  if (!last) return;
  const uint32_t all = exclusive_sums<kPlaceThreads>(p.key_blocks, blocks);
  if (threadIdx.x == 0) p.key_blocks[blocks] = all;
}

// Sorts the lanes by their values, largest first: lane i gets the number of the i-th lane (bitonic sort,
// Batcher 1968).
__device__ uint32_t lanes_by(uint32_t value) {
  const uint32_t lane = threadIdx.x % 32;
  uint32_t word = value << 5 | lane;
#pragma unroll
  for (uint32_t size = 2; size <= 32; size *= 2) {
#pragma unroll
    for (uint32_t step = size / 2; step >= 1; step /= 2) {
      const uint32_t other = __shfl_xor_sync(kWarp, word, step);
      const bool takes_larger = ((lane & step) == 0) == ((lane & size) == 0);
      word = takes_larger ? max(word, other) : min(word, other);
    }
  }
  return word & 31;
}

// One warp per row tile.
__device__ void place_rows(const BackwardProblem& p, int64_t tile) {
  const RowTile rows(p, tile);
  const uint32_t lane = threadIdx.x % 32;
  int64_t pool = -1;
  uint32_t count = 0;
  if (rows.has(p, lane)) {
    pool = p.support.offsets[rows.row(p, lane)];
    count = static_cast<uint32_t>(p.support.counts[rows.row(p, lane)]);
  }
  if (pool < 0) count = 0;
  const bool is_long = count > kLongRow;
  if (is_long) p.long_rows[atomicAdd(&p.counters->long_rows, 1u)] = rows.row(p, lane);
  const uint32_t in_slot = is_long ? kLongRow + 1 : count, other = lanes_by(is_long ? 0 : count);
  p.row_slots[tile * kRowTile + lane] = {
      .pool = __shfl_sync(kWarp, pool, other), .in_tile = other, .count = __shfl_sync(kWarp, in_slot, other)};
}

// First blocks of keys, then blocks of row tiles.
__global__ void __launch_bounds__(kPlaceThreads)
    place_keys_and_rows(const __grid_constant__ BackwardProblem p, const uint32_t key_blocks) {
  wait_for_kernels_before();
  if (blockIdx.x < key_blocks) {
    place_keys(p, blockIdx.x, key_blocks);
    return;
  }
  const int64_t tile =
      int64_t{blockIdx.x - key_blocks} * (kPlaceThreads / 32) + static_cast<int>(threadIdx.x) / 32;
  if (tile < p.row_tiles) place_rows(p, tile);
}

}  // namespace

void place_entries(const BackwardProblem& p, StreamHandle stream) {
  const uint32_t windows = (p.kv_len + kCountKeys - 1) / kCountKeys,
                 key_blocks = (p.keys + kKeyBlock - 1) / kKeyBlock;
  launch("count_entries", count_entries, p.keys / p.kv_len * windows * p.slices, kCountThreads, stream, p);
  constexpr int kTiles = kPlaceThreads / 32;  // of a block
  const auto row_blocks = static_cast<uint32_t>((p.row_tiles + kTiles - 1) / kTiles);
  launch("place_keys_and_rows", place_keys_and_rows, key_blocks + row_blocks, kPlaceThreads, stream, p,
         key_blocks);
}

}  // namespace splash::gpu::entmax::backward
