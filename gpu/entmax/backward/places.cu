// Finds where each key's entries begin when entries are ordered by key: counts per key, prefix sums inside
// blocks of keys, then over the blocks. Also sorts the rows of each row tile by length for the row pass.

#include <algorithm>

#include "gpu/entmax/backward/row_tile.cuh"
#include "gpu/entmax/schedule/launch.cuh"
#include "gpu/entmax/schedule/scan.cuh"

namespace splash::gpu::entmax::backward {
namespace {

constexpr int kPlaceThreads = 256, kCountThreads = 1024, kKeyThreads = kKeyBlock / 4, kScanThreads = 1024;
constexpr uint32_t kCountKeys = 16384,
                   kCountRows = 65535;  // most per block: so a key's count fits 16 bits
constexpr int kLanesARow = 8;           // that count a row's keys
static_assert(kRowTile == 32, "a warp a tile");

__global__ void __launch_bounds__(kPlaceThreads) clear_counts(const __grid_constant__ BackwardProblem p) {
  wait_for_kernels_before();
  const uint32_t thread = blockIdx.x * kPlaceThreads + threadIdx.x, fours = (p.keys + 3) / 4;
  if (thread == 0) *p.counters = {};
  for (uint32_t i = thread; i < fours; i += gridDim.x * kPlaceThreads)
    reinterpret_cast<uint4*>(p.key_places)[i] = {};
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
__global__ void __launch_bounds__(kPlaceThreads) place_rows(const __grid_constant__ BackwardProblem p) {
  wait_for_kernels_before();
  const int64_t thread = int64_t{blockIdx.x} * kPlaceThreads + threadIdx.x, tile = thread / kRowTile;
  if (tile >= p.row_tiles) return;
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
  p.row_slots[thread] = {
      .pool = __shfl_sync(kWarp, pool, other), .in_tile = other, .count = __shfl_sync(kWarp, in_slot, other)};
}

// How a key head's keys and the rows that may attend to them are divided among blocks.
struct Counting {
  uint32_t windows, slices;  // of keys, of rows

  Counting(const BackwardProblem& p, uint32_t multiprocessors)
      : windows((p.kv_len + kCountKeys - 1) / kCountKeys) {
    const uint32_t wanted = multiprocessors / (windows * (p.keys / p.kv_len)) + 1,
                   most = p.rows_a_key / kCountThreads + 1, least = p.rows_a_key / kCountRows + 1;
    slices = std::max(std::min(wanted, most), least);
  }
};

// A block counts, in shared memory, the entries that a slice of the rows has in a window of keys, two keys
// per word. A warp takes 32 rows at a time.
__global__ void __launch_bounds__(kCountThreads)
    count_entries(const __grid_constant__ BackwardProblem p, const Counting counting) {
  wait_for_kernels_before();
  __shared__ uint32_t counts[kCountKeys / 2];
  const uint32_t window = blockIdx.x % counting.windows, rest = blockIdx.x / counting.windows,
                 slice = rest % counting.slices, key_head = rest / counting.slices;
  const uint32_t first_key = window * kCountKeys, keys = min(p.kv_len - first_key, kCountKeys);
  for (uint32_t i = threadIdx.x; i < kCountKeys / 2; i += kCountThreads) counts[i] = 0;
  __syncthreads();

  const auto add = [&](int32_t of_key) {
    const uint32_t key = static_cast<uint32_t>(of_key) - first_key;
    if (key < keys) atomicAdd(&counts[key / 2], key % 2 == 0 ? 1u : 1u << 16);
  };
  // Counts every `lanes`-th entry of a row, from `entry` on.
  const auto add_row = [&](int64_t first, uint32_t n, uint32_t entry, int lanes) {
    for (; entry < n; entry += 4 * lanes) {
      int32_t key[4];  // in flight together
#pragma unroll
      for (int i = 0; i < 4; ++i) key[i] = p.support.columns[first + min(entry + i * lanes, n - 1)];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (entry + i * lanes < n) add(key[i]);
      }
    }
  };
  const auto first_of = [&](uint32_t of_slice) {
    return static_cast<uint32_t>(uint64_t{p.rows_a_key} * of_slice / counting.slices);
  };
  const uint32_t lane = threadIdx.x % 32, end = first_of(slice + 1);
  for (uint32_t row = first_of(slice) + threadIdx.x - lane; row < end; row += kCountThreads) {
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
  uint32_t* const of_keys = p.key_places + key_head * p.kv_len + first_key;
  for (uint32_t i = threadIdx.x; i < keys; i += kCountThreads) {
    const uint32_t count = counts[i / 2] >> 16 * (i % 2) & 0xFFFF;
    if (count > 0) atomicAdd(&of_keys[i], count);
  }
}

// One block per block of keys: turns each key's count into the sum of the counts up to and including its own,
// within the block of keys.
__global__ void __launch_bounds__(kKeyThreads) place_keys(const __grid_constant__ BackwardProblem p) {
  wait_for_kernels_before();
  const uint32_t four = blockIdx.x * kKeyThreads + threadIdx.x;
  uint4* const places = reinterpret_cast<uint4*>(p.key_places) + four;
  uint4 ends{};
  if (four * uint64_t{4} < p.keys) ends = *places;
  ends.y += ends.x;
  ends.z += ends.y;
  ends.w += ends.z;
  uint32_t total;
  const uint32_t before = exclusive_sum<kKeyThreads>(ends.w, total);
  if (four * uint64_t{4} < p.keys)
    *places = {before + ends.x, before + ends.y, before + ends.z, before + ends.w};
  if (threadIdx.x == 0) p.key_blocks[blockIdx.x] = total;
}

__global__ void __launch_bounds__(kScanThreads)
    place_key_blocks(const __grid_constant__ BackwardProblem p, const uint32_t blocks) {
  wait_for_kernels_before();
  const uint32_t total = exclusive_sums<kScanThreads>(p.key_blocks, blocks);
  if (threadIdx.x == 0) p.key_blocks[blocks] = total;
}

}  // namespace

void place_entries(const BackwardProblem& p, StreamHandle stream) {
  const unsigned key_blocks = (p.keys + kKeyBlock - 1) / kKeyBlock;
  launch("clear_counts", clear_counts, std::min<unsigned>(key_blocks, kMostBlocks), kPlaceThreads, stream, p);
  const auto blocks = static_cast<unsigned>((p.row_tiles * kRowTile + kPlaceThreads - 1) / kPlaceThreads);
  launch("place_rows", place_rows, blocks, kPlaceThreads, stream, p);
  const Counting counting(p, static_cast<uint32_t>(multiprocessors()));
  launch("count_entries", count_entries, p.keys / p.kv_len * counting.windows * counting.slices,
         kCountThreads, stream, p, counting);
  launch("place_keys", place_keys, key_blocks, kKeyThreads, stream, p);
  launch("place_key_blocks", place_key_blocks, 1, kScanThreads, stream, p, key_blocks);
}

}  // namespace splash::gpu::entmax::backward
