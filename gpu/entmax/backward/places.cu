// Where each row's entries stand when the rows follow one another: prefix sums inside blocks of 8 row tiles,
// then over the blocks. And in which order the row pass takes the rows of a tile.

#include "gpu/entmax/backward/launch.cuh"
#include "gpu/entmax/backward/row_tile.cuh"
#include "gpu/entmax/scan.cuh"

namespace splash::gpu::entmax::backward {
namespace {

constexpr int kPlaceThreads = kRowTile * kRowBlock, kPlaceScanThreads = 1024;
static_assert(kRowTile == 32, "a warp a tile");

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

__global__ void __launch_bounds__(kPlaceThreads) place_rows(const __grid_constant__ Problem p) {
  wait_for_kernels_before();
  const int64_t thread = int64_t{blockIdx.x} * kPlaceThreads + threadIdx.x;
  for (int64_t i = thread; i < (int64_t{p.keys} + 15) / 16; i += int64_t{gridDim.x} * kPlaceThreads)
    reinterpret_cast<uint4*>(p.present)[i] = {};

  const int64_t tile = thread / kRowTile;
  const RowTile rows(p, tile);
  const uint32_t lane = threadIdx.x % 32;
  int64_t pool = -1;
  uint32_t count = 0;
  if (tile < p.row_tiles && rows.has(p, lane)) {
    pool = p.support.offsets[rows.row(p, lane)];
    count = static_cast<uint32_t>(p.support.counts[rows.row(p, lane)]);
  }
  if (pool < 0) count = 0;
  const bool is_long = count > kLongRow;
  unsigned long long total;
  const auto before =
      exclusive_sum<kPlaceThreads>(static_cast<unsigned long long>(is_long) << 32 | count, total);
  if (threadIdx.x == 0) p.block_places[blockIdx.x] = total;
  if (tile >= p.row_tiles) return;

  if (is_long) count = kLongRow + 1 + static_cast<uint32_t>(before >> 32);
  const uint32_t other = lanes_by(is_long ? 0 : count);
  p.row_slots[thread] = {.pool = __shfl_sync(kWarp, pool, other),
                         .first = __shfl_sync(kWarp, static_cast<uint32_t>(before), other),
                         .in_tile = other,
                         .count = __shfl_sync(kWarp, count, other)};
}

__global__ void __launch_bounds__(kPlaceScanThreads)
    place_blocks(const __grid_constant__ Problem p, const uint32_t blocks) {
  wait_for_kernels_before();
  const auto total = exclusive_sums<kPlaceScanThreads>(p.block_places, blocks);
  if (threadIdx.x == 0) *p.totals = total;
}

}  // namespace

void place_entries(const Problem& p, StreamHandle stream) {
  const auto blocks = static_cast<uint32_t>((p.row_tiles + kRowBlock - 1) / kRowBlock);
  launch("place_rows", place_rows, blocks, kPlaceThreads, stream, p);
  launch("place_blocks", place_blocks, 1, kPlaceScanThreads, stream, p, blocks);
}

}  // namespace splash::gpu::entmax::backward
