// Where each key's entries begin when keys follow one another: counts, prefix sums inside blocks of keys,
// then over the blocks. And in which order the row pass takes the rows of a tile.

#include <algorithm>

#include "gpu/entmax/backward/launch.cuh"
#include "gpu/entmax/backward/row_tile.cuh"
#include "gpu/entmax/scan.cuh"

namespace splash::gpu::entmax::backward {
namespace {

constexpr int kPlaceThreads = 256, kKeyThreads = kKeyBlock / 4, kScanThreads = 1024;
constexpr int kLanesARow = 8;  // that count its keys
static_assert(kRowTile == 32, "a warp a tile");

__global__ void __launch_bounds__(kPlaceThreads) clear_counts(const __grid_constant__ Problem p) {
  wait_for_kernels_before();
  const uint32_t thread = blockIdx.x * kPlaceThreads + threadIdx.x, fours = (p.keys + 3) / 4;
  if (thread == 0) *p.counters = {};
  for (uint32_t i = thread; i < fours; i += gridDim.x * kPlaceThreads)
    reinterpret_cast<uint4*>(p.key_places)[i] = {};
}

// The lanes in the order of their values, largest first: lane i gets the i-th (a bitonic sort, Batcher 1968).
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

// A warp a row tile.
__global__ void __launch_bounds__(kPlaceThreads) place_rows(const __grid_constant__ Problem p) {
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

  uint32_t* const counts = p.key_places + rows.head / p.group * p.kv_len;
  const auto add = [&](int64_t entry) { atomicAdd(&counts[p.support.columns[entry]], 1u); };
#pragma unroll
  for (int i = 0; i < kLanesARow; ++i) {  // 32 / kLanesARow rows at a time
    const int row = i * (32 / kLanesARow) + lane / kLanesARow;
    const int64_t first = __shfl_sync(kWarp, pool, row);
    const uint32_t n = __shfl_sync(kWarp, is_long ? 0 : count, row);
    for (uint32_t entry = lane % kLanesARow; entry < n; entry += kLanesARow) add(first + entry);
  }
  for (uint32_t left = __ballot_sync(kWarp, is_long); left != 0; left &= left - 1) {
    const int row = __ffs(left) - 1;
    const int64_t first = __shfl_sync(kWarp, pool, row);
    const uint32_t n = __shfl_sync(kWarp, count, row);
#pragma unroll 4
    for (uint32_t entry = lane; entry < n; entry += 32) add(first + entry);
  }
}

// A block a block of keys: each key's count and those before it there.
__global__ void __launch_bounds__(kKeyThreads) place_keys(const __grid_constant__ Problem p) {
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
    place_key_blocks(const __grid_constant__ Problem p, const uint32_t blocks) {
  wait_for_kernels_before();
  const uint32_t total = exclusive_sums<kScanThreads>(p.key_blocks, blocks);
  if (threadIdx.x == 0) p.key_blocks[blocks] = total;
}

}  // namespace

void place_entries(const Problem& p, StreamHandle stream) {
  const unsigned key_blocks = (p.keys + kKeyBlock - 1) / kKeyBlock;
  launch("clear_counts", clear_counts, std::min<unsigned>(key_blocks, kMostBlocks), kPlaceThreads, stream, p);
  const auto blocks = static_cast<unsigned>((p.row_tiles * kRowTile + kPlaceThreads - 1) / kPlaceThreads);
  launch("place_rows", place_rows, blocks, kPlaceThreads, stream, p);
  launch("place_keys", place_keys, key_blocks, kKeyThreads, stream, p);
  launch("place_key_blocks", place_key_blocks, 1, kScanThreads, stream, p, key_blocks);
}

}  // namespace splash::gpu::entmax::backward
