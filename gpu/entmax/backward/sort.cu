// A stable radix sort of the entries by key, least significant digit first, after Merrill and Grimshaw 2011.
// A pass of up to 9 bits: counts a (digit, tile of entries), their prefix sums, and each tile's entries to
// their places. Equal keys keep the order of the rows, so that the column sums are the same in every run.

#include <algorithm>
#include <bit>

#include "gpu/entmax/backward/launch.cuh"
#include "gpu/entmax/backward/row_tile.cuh"
#include "gpu/entmax/scan.cuh"

namespace splash::gpu::entmax::backward {
namespace {

constexpr int kSortThreads = 256, kSortWarps = kSortThreads / 32, kItems = kSortTile / kSortThreads;
constexpr int kDigitBits = std::bit_width(unsigned{kDigits} - 1);

struct Pass {
  const unsigned long long* totals;
  const uint32_t* keys;   // what the first pass reads: entry i has the i-th key
  const Keyed* pairs_in;  // what the others read, or null
  Keyed* pairs_out;       // what all but the last write, or null
  uint32_t* order;        // what the last writes
  uint32_t *places, *digit_totals;
  uint32_t shift, mask;

  __device__ uint32_t entries() const { return static_cast<uint32_t>(*totals); }
  __device__ uint32_t digit(uint32_t key) const { return key >> shift & mask; }
  __device__ uint32_t key(uint32_t i) const { return pairs_in != nullptr ? pairs_in[i].key : keys[i]; }
  __device__ Keyed pair(uint32_t i) const { return pairs_in != nullptr ? pairs_in[i] : Keyed{keys[i], i}; }
};

__global__ void __launch_bounds__(kSortThreads) count_digits(const __grid_constant__ Pass pass) {
  wait_for_kernels_before();
  __shared__ uint32_t counts[kDigits];
  const uint32_t entries = pass.entries();
  for (uint32_t tile = blockIdx.x; tile * int64_t{kSortTile} < entries; tile += gridDim.x) {
    uint32_t keys[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const uint32_t entry = tile * kSortTile + i * kSortThreads + threadIdx.x;
      keys[i] = entry < entries ? pass.key(entry) : kNoKey;
    }
    for (int d = threadIdx.x; d < kDigits; d += kSortThreads) counts[d] = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (keys[i] != kNoKey) atomicAdd(&counts[pass.digit(keys[i])], 1u);
    }
    __syncthreads();
    for (int d = threadIdx.x; d < kDigits; d += kSortThreads)
      pass.places[uint64_t{tile} * kDigits + d] = counts[d];
    __syncthreads();  // counts may be cleared
  }
}

// A block for 8 digits (32 bytes of every tile's counts): where their entries of each tile stand among all
// with the digit. Thread t takes digit t % 8 and the (t / 8)-th range of the tiles.
constexpr int kScanDigits = 8, kDigitScanThreads = 1024, kRanges = kDigitScanThreads / kScanDigits;
constexpr uint32_t kFlight = 8;  // counts on their way

__global__ void __launch_bounds__(kDigitScanThreads) scan_digits(const __grid_constant__ Pass pass) {
  wait_for_kernels_before();
  __shared__ uint32_t warp_sums[kDigitScanThreads / 32][kScanDigits];
  const uint32_t tiles = (pass.entries() + kSortTile - 1) / kSortTile, per = (tiles + kRanges - 1) / kRanges;
  const uint32_t first = threadIdx.x / kScanDigits * per, end = min(first + per, tiles);
  const uint32_t in_block = threadIdx.x % kScanDigits, digit = blockIdx.x * kScanDigits + in_block;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t* const places = pass.places + digit;
  uint32_t counts[kFlight], sum = 0;
  const auto read = [&](uint32_t from) {
#pragma unroll
    for (uint32_t i = 0; i < kFlight; ++i)
      counts[i] = from + i < end ? places[uint64_t{from + i} * kDigits] : 0;
  };
  for (uint32_t tile = first; tile < end; tile += kFlight) {
    read(tile);
#pragma unroll
    for (const uint32_t count : counts) sum += count;
  }
  uint32_t upto = sum;
#pragma unroll
  for (int step = kScanDigits; step < 32; step *= 2) {
    const uint32_t before = __shfl_up_sync(kWarp, upto, step);
    if (lane >= step) upto += before;
  }
  if (lane >= 32 - kScanDigits) warp_sums[warp][in_block] = upto;
  __syncthreads();
  uint32_t place = upto - sum, total = 0;
  for (uint32_t w = 0; w < kDigitScanThreads / 32; ++w) {
    if (w == warp) place += total;
    total += warp_sums[w][in_block];
  }
  for (uint32_t tile = first; tile < end; tile += kFlight) {
    read(tile);
#pragma unroll
    for (uint32_t i = 0; i < kFlight; ++i) {
      if (tile + i < end) places[uint64_t{tile + i} * kDigits] = place;
      place += counts[i];
    }
  }
  if (threadIdx.x < kScanDigits) pass.digit_totals[digit] = total;
}

// How many lanes before this one, and in all, have the same digit.
__device__ uint2 rank_in_warp(uint32_t digit) {
  uint32_t same = kWarp;
#pragma unroll
  for (int bit = 0; bit < kDigitBits; ++bit) {
    const bool set = (digit >> bit & 1) != 0;
    const uint32_t with_bit = __ballot_sync(kWarp, set);
    same &= set ? with_bit : ~with_bit;
  }
  const uint32_t before = (1u << threadIdx.x % 32) - 1;
  return {static_cast<uint32_t>(__popc(same & before)), static_cast<uint32_t>(__popc(same))};
}

__global__ void __launch_bounds__(kSortThreads, 4) move_entries(const __grid_constant__ Pass pass) {
  wait_for_kernels_before();
  static_assert(kDigits == 2 * kSortThreads, "a thread looks after two digits, packed in a word");
  __shared__ uint32_t count_words[kSortWarps][kDigits / 2];  // 16 bits a digit
  __shared__ Keyed sorted[kSortTile];
  __shared__ uint32_t bases[kDigits];  // a tile's first entry with the digit: its place - rank
  const uint32_t entries = pass.entries();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  auto* const counts = reinterpret_cast<uint16_t*>(count_words[warp]);
  uint32_t unused;
  const uint2 totals = reinterpret_cast<const uint2*>(pass.digit_totals)[threadIdx.x];
  const uint32_t before_digit = exclusive_sum<kSortThreads>(totals.x + totals.y, unused);

  for (uint32_t tile = blockIdx.x; tile * int64_t{kSortTile} < entries; tile += gridDim.x) {
    for (int w = 0; w < kSortWarps; ++w) count_words[w][threadIdx.x] = 0;
    __syncthreads();

    Keyed pairs[kItems];
    uint32_t ranks[kItems];
    const uint32_t first = tile * kSortTile + warp * (kItems * 32) + lane;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const uint32_t entry = first + i * 32;
      // What lies past the end gets the highest digit: last in the tile, and never moved.
      pairs[i] = entry < entries ? pass.pair(entry) : Keyed{kNoKey, 0};
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const uint32_t digit = pass.digit(pairs[i].key);
      const uint2 rank = rank_in_warp(digit);
      ranks[i] = counts[digit] + rank.x;
      __syncwarp();  // all have read
      if (rank.x == 0) counts[digit] += static_cast<uint16_t>(rank.y);
      __syncwarp();
    }
    __syncthreads();

    uint32_t before_warp = 0;  // both digits at once: neither half can overflow
#pragma unroll
    for (int w = 0; w < kSortWarps; ++w) {
      const uint32_t count = count_words[w][threadIdx.x];
      count_words[w][threadIdx.x] = before_warp;
      before_warp += count;
    }
    const uint32_t low = before_warp & 0xFFFFu, both = low + (before_warp >> 16);
    const uint32_t in_tile = exclusive_sum<kSortThreads>(both, unused);
#pragma unroll
    for (int w = 0; w < kSortWarps; ++w) count_words[w][threadIdx.x] += in_tile | (in_tile + low) << 16;
    const uint2 places = reinterpret_cast<const uint2*>(pass.places + uint64_t{tile} * kDigits)[threadIdx.x];
    bases[2 * threadIdx.x] = before_digit + places.x - in_tile;
    bases[2 * threadIdx.x + 1] = before_digit + totals.x + places.y - (in_tile + low);
    __syncthreads();

#pragma unroll
    for (int i = 0; i < kItems; ++i) sorted[ranks[i] + counts[pass.digit(pairs[i].key)]] = pairs[i];
    __syncthreads();
    const uint32_t real = min(uint32_t{kSortTile}, entries - tile * kSortTile);
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < real; i += kSortThreads) {
      const Keyed pair = sorted[i];
      const uint32_t place = bases[pass.digit(pair.key)] + i;
      if (pass.pairs_out != nullptr) {
        pass.pairs_out[place] = pair;
      } else {
        pass.order[place] = pair.entry;
      }
    }
    __syncthreads();  // the shared arrays may be written again
  }
}

int key_bits(uint32_t keys) {
  return std::max(1, static_cast<int>(std::bit_width(keys - 1)));
}

}  // namespace

int sort_passes(uint32_t keys) {
  return (key_bits(keys) + kDigitBits - 1) / kDigitBits;
}

void sort_entries(const Problem& p, StreamHandle stream) {
  const int passes = sort_passes(p.keys), bits = (key_bits(p.keys) + passes - 1) / passes;
  const auto blocks = std::min<unsigned>(p.sort_tiles, kMostBlocks);
  for (int i = 0; i < passes; ++i) {
    const Pass pass{.totals = p.totals,
                    .keys = p.sort_keys,
                    .pairs_in = i == 0 ? nullptr : p.sort_pairs[(i + 1) % 2],
                    .pairs_out = i + 1 == passes ? nullptr : p.sort_pairs[i % 2],
                    .order = p.order,
                    .places = p.digit_places,
                    .digit_totals = p.digit_totals,
                    .shift = static_cast<uint32_t>(i * bits),
                    .mask = (1u << bits) - 1};
    launch("count_digits", count_digits, blocks, kSortThreads, stream, pass);
    launch("scan_digits", scan_digits, kDigits / kScanDigits, kDigitScanThreads, stream, pass);
    launch("move_entries", move_entries, blocks, kSortThreads, stream, pass);
  }
}

}  // namespace splash::gpu::entmax::backward
