#pragma once
// Forward on Hopper (sm_90a): screen, solve, gather, in one launch. A block of two warpgroups owns 128
// queries: Q in registers, K through a ring of tiles that the copy engine fills, V only where p > 0. Two
// blocks a multiprocessor, so that one's products hide the other's solving and gathering.
//
// A product waits for all four warps of a warpgroup, a tile's place in the ring for all warps. So what a warp
// does only now and then, such as listing pairs, all do in the same turns: else each would wait for each.

#include <type_traits>

#include "gpu/arch/bulk_copy.cuh"
#include "gpu/arch/mbarrier.cuh"
#include "gpu/arch/wgmma.cuh"
#include "gpu/entmax/finish.cuh"
#include "gpu/entmax/screen.cuh"

namespace splash::gpu::entmax {

// Tiles of which a warp had no room for what it was to put aside: bit i % 32 of word i / 32 is the i-th tile.
struct LostTiles {
  static constexpr int kMost = 1024;
  unsigned words[kMost / 32];
};

// kPanels: of 64 dimensions. At one panel a tile of keys is multiplied half by half, each into registers of
// its own: while the tensor cores work on one half, the warps look through the other. kLong: one block a
// multiprocessor, so that lists are as long as shared memory allows.
template <int kPanels, bool kLong>
struct ForwardTiles {
  static constexpr int kWarps = 8, kThreads = 32 * kWarps, kQueries = kWarps * kWarpRows;
  static constexpr int kBlocks = kLong || kPanels > 2 ? 1 : 2;  // a multiprocessor
  static constexpr int kKeys = kPanels == 1 ? 128 : 64, kPanelBytes = kKeys * 128, kStages = 2;
  static constexpr int kParts = kPanels == 1 ? 2 : 1;
  using Lists = RowLists<(!kLong ? 52 : kPanels > 2 ? 116 : 156)>;
  using Aside = entmax::Aside<40>;

  alignas(1024) unsigned char keys[kStages][kPanels * kPanelBytes];
  Aside aside[kWarps];
  Lists lists[kWarps];
  uint64_t full[kStages], empty[kStages], again;
  int seen[2][kWarps];  // groups that waited in each warp when it last listed them, and the time before
  LostTiles lost[kWarps];
  Entmax entmax;
  float* bounds;  // of the head's rows
};

// Which tiles of keys a block visits, and in which order. A pass over some of them, spread over all, finds
// bounds: the last one is among them, for recent keys tend to matter most, and the first, to which many
// models attend. A pass over all of them, the last first, finds what exceeds the bounds. The first takes an
// even number of turns, so that the compiler knows each turn's place in the ring.
struct TileOrder {
  static constexpr int kMostSamples = 16;
  int count, samples;

  __device__ __forceinline__ TileOrder(int tiles, bool sampled)
      : count(tiles), samples(sampled && tiles > 0 ? max(2, min(kMostSamples, tiles / 2 & ~1)) : 0) {}
  __device__ __forceinline__ int turns() const { return samples + count; }
  __device__ __forceinline__ int sample(int i) const { return (count - 1) * i / (samples - 1); }
  __device__ __forceinline__ int tile(int turn) const {
    return turn < samples ? sample(turn) : count - 1 - (turn - samples);
  }
};

// The queries' fragments as wgmma takes them from registers: 16 rows a warp. Rows and dimensions outside are
// zeros.
template <int kSteps>
__device__ __forceinline__ void load_queries(const Problem& p, int head, const int (&queries)[2],
                                             uint32_t (&fragments)[kSteps][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto* const q = static_cast<const uint16_t*>(p.q) + int64_t{head} * p.q_len * p.head_dim;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int query = queries[i % 2], column = 16 * step + 2 * (lane % 4) + 8 * (i / 2);
      fragments[step][i] = query >= 0 && column < p.head_dim
                               ? *reinterpret_cast<const uint32_t*>(q + int64_t{query} * p.head_dim + column)
                               : 0;
    }
  }
}

template <class T, int kPanels, bool kLong>
__global__ void __launch_bounds__(ForwardTiles<kPanels, kLong>::kThreads,
                                  ForwardTiles<kPanels, kLong>::kBlocks)
    forward_kernel(const __grid_constant__ Problem p, const __grid_constant__ CUtensorMap k_map) {
  using Tiles = ForwardTiles<kPanels, kLong>;
  constexpr int kKeys = Tiles::kKeys, kPart = kKeys / Tiles::kParts, kStages = Tiles::kStages;
  constexpr int kQueries = Tiles::kQueries;
  using Part = float[kPart / 2];
  extern __shared__ __align__(1024) unsigned char dynamic[];
  Tiles& tiles = *reinterpret_cast<Tiles*>(dynamic);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int head = static_cast<int>(blockIdx.x) % p.heads;
  const int tile = static_cast<int>(gridDim.x / p.heads) - 1 - static_cast<int>(blockIdx.x) / p.heads;
  const int* const gathered = kLong ? p.rows.queries + int64_t{head} * p.q_len : nullptr;
  const int present = kLong ? p.rows.counts[head] : p.q_len;
  if (tile * kQueries >= present) return;

  const auto query_of = [&](int row) { return row >= present ? -1 : kLong ? gathered[row] : row; };
  const auto end_of = [&](int query) { return max(min(query + p.reach, p.kv_len), 0); };
  const int warp_row = tile * kQueries + warp * kWarpRows;
  const int block_end = end_of(query_of(min(tile * kQueries + kQueries, present) - 1));
  const int whole_end = end_of(query_of(warp_row));  // every row of the warp sees the keys below
  const TileOrder order((block_end + kKeys - 1) / kKeys, !kLong);

  const auto load = [&](int tile_of_keys, int stage, uint64_t* full) {
    arch::mbarrier_arrive_expect(full, sizeof tiles.keys[0]);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel)
      arch::tensor_load(tiles.keys[stage] + panel * Tiles::kPanelBytes, &k_map, full, 64 * panel,
                        kKeys * tile_of_keys, head / p.group);
  };
  if (thread == 0) {
    tiles.entmax = entmax_of(p, head);
    tiles.bounds = p.bounds + int64_t{head} * p.q_len;
    for (int s = 0; s < kStages; ++s) {
      arch::mbarrier_init(&tiles.full[s], 1);
      arch::mbarrier_init(&tiles.empty[s], Tiles::kWarps);
    }
    arch::mbarrier_init(&tiles.again, 1);
    arch::mbarrier_init_fence();
    for (int i = 0; i < min(kStages, order.turns()); ++i) load(order.tile(i), i, &tiles.full[i]);
  }
  const int queries[2] = {query_of(warp_row + lane / 4), query_of(warp_row + lane / 4 + 8)};
  uint32_t q[4 * kPanels][4];
  load_queries(p, head, queries, q);

  auto& lists = tiles.lists[warp];
  if (lane % 4 == 0) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = queries[half];
      lists.query[row_of(half)] = query;
      lists.count[row_of(half)] = 0;
      lists.bound[row_of(half)] = query < 0 ? kCrowded
                                  : kLong   ? p.bounds[int64_t{head} * p.q_len + query]
                                            : -INFINITY;
    }
  }
  LostTiles& lost = tiles.lost[warp];
  lost.words[lane] = 0;
  __syncthreads();
  Screen<kPart, typename Tiles::Lists, typename Tiles::Aside> screen(lists, tiles.aside[warp], tiles.entmax,
                                                                     tiles.bounds);

  const auto multiply = [&](Part& acc, const unsigned char* keys) {
    arch::wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4 * kPanels; ++step) {
      const uint64_t panel = arch::k_major_descriptor(keys + step / 4 * Tiles::kPanelBytes);
      arch::wgmma<T>(acc, q[step], arch::advance(panel, 32 * (step % 4)), step > 0);
    }
    arch::wgmma_commit();
  };
  // What a row does not see is -inf.
  const auto hide = [&](Part& acc, int first_key) {
    if (first_key + kPart <= whole_end) [[likely]]
      return;
    const int end[2] = {end_of(lists.query[row_of(0)]), end_of(lists.query[row_of(1)])};
#pragma unroll
    for (int j = 0; j < kPart / 2; ++j) {
      const int key = first_key + 2 * (lane % 4) + 8 * (j / 4) + j % 2;
      if (key >= end[j / 2 % 2]) acc[j] = -INFINITY;
    }
  };
  // Multiplies a tile part by part; what `look` does with the first goes on beside the second's product.
  const auto multiply_tile = [&](const unsigned char* keys, int key, const auto& look,
                                 const auto& multiplied) {
    Part last;
    if constexpr (Tiles::kParts == 2) {
      Part first;
      multiply(first, keys);
      multiply(last, keys + kPart * 128);
      arch::wgmma_wait<1>();
      arch::wgmma_hold(first);
      hide(first, key);
      look(first, key);
    } else {
      multiply(last, keys);
    }
    arch::wgmma_wait<0>();
    arch::wgmma_hold(last);
    multiplied();
    hide(last, key + kKeys - kPart);
    look(last, key + kKeys - kPart);
  };
  static_assert(kStages == 2);
  const auto take_tile = [&](auto stage, unsigned turn, int tile_of_keys, const auto& look) {
    constexpr int kStage = stage(), kOther = 1 - kStage;
    if (thread == 0 && turn > 0 && turn + 1 < static_cast<unsigned>(order.turns())) {
      arch::mbarrier_wait(&tiles.empty[kOther], (turn - 1) / 2 % 2);  // where the tile before lay
      load(order.tile(static_cast<int>(turn) + 1), kOther, &tiles.full[kOther]);
    }
    __syncwarp();
    arch::mbarrier_wait(&tiles.full[kStage], turn / 2 % 2);
    multiply_tile(tiles.keys[kStage], kKeys * tile_of_keys, look, [&] {
      __syncwarp();
      if (lane == 0) arch::mbarrier_arrive(&tiles.empty[kStage]);
    });
  };
  constexpr std::integral_constant<int, 0> kEven;
  constexpr std::integral_constant<int, 1> kOdd;

  bool done = order.count == 0;
  // Nothing may land after the block's end: where it ends early, one tile is under way.
  const auto stop_before = [&](int turn) {
    done = true;
    arch::mbarrier_wait(&tiles.full[turn % 2], turn / 2 % 2);
  };
  if (order.samples > 0) {
    constexpr int kFew = 4;
    Samples largest;
    for (int turn = 0; turn < order.samples && !done; turn += 2) {
      take_tile(kEven, turn, order.sample(turn), [&](const Part& acc, int) { largest.take(acc); });
      // Only where there is but one tile they are the same: then it must not count twice.
      const bool distinct = order.sample(turn + 1) != order.sample(turn);
      take_tile(kOdd, turn + 1, order.sample(turn + 1), [&](const Part& acc, int) {
        if (distinct) largest.take(acc);
      });
      if (turn + 2 == kFew && __syncthreads_and(screen.broad(largest))) {
        screen.close_all();
        stop_before(kFew);
      }
    }
    if (!done) screen.bound_from(largest);
  }
  bool lost_some = false;
  int interval = 1, next = 0, raise = 4, listings = 0;  // next: the turn after which is listed again
  const auto take_and_settle = [&](auto stage, int i) {
    take_tile(stage, order.samples + i, order.count - 1 - i,
              [&](const Part& acc, int key) { screen.look(acc, key); });
    const bool fits = screen.settle();
    if (!fits) [[unlikely]] {
      lost_some = true;
      if (i >= LostTiles::kMost) {
        screen.close_all();
      } else if (lane == 0) {
        lost.words[i / 32] |= 1u << i % 32;
      }
    }
    done = i + 1 == order.count;
    if (i != next || done) [[likely]]
      return;
    constexpr int kRoom = Tiles::Aside::kRoom;
    int* const seen = tiles.seen[listings++ % 2];
    if (lane == 0) seen[warp] = fits ? screen.waiting() : kRoom;
    screen.list(i >= raise);
    if (i >= raise) raise *= 2;
    if (__syncthreads_and(screen.closed())) {
      stop_before(order.samples + i + 1);
      return;
    }
    int most = 0;
    for (int w = 0; w < Tiles::kWarps; ++w) most = max(most, seen[w]);
    // So that the fullest warp's room is a third to five eighths full when it is listed.
    interval = most > kRoom * 5 / 8 ? (interval + 1) / 2 : most < kRoom / 3 ? 2 * interval : interval;
    next += interval;
  };
  for (int i = 0; !done; i += 2) {
    take_and_settle(kEven, i);
    if (!done) take_and_settle(kOdd, i + 1);
  }
  screen.list(false);

  // Once more those tiles of which too much had to be put aside at once: by now the bounds are tight.
  if (__syncthreads_or(lost_some && !screen.closed())) [[unlikely]] {
    uint32_t parity = 0;
    for (int word = 0; word < min(LostTiles::kMost, order.count + 31) / 32; ++word) {
      unsigned of_any = 0;
      for (const LostTiles& of_warp : tiles.lost) of_any |= of_warp.words[word];
      for (; of_any != 0; of_any &= of_any - 1, parity ^= 1) {
        const int bit = __ffs(static_cast<int>(of_any)) - 1,
                  tile_of_keys = order.count - 1 - (32 * word + bit);
        if (thread == 0) load(tile_of_keys, 0, &tiles.again);
        arch::mbarrier_wait(&tiles.again, parity);
        const bool mine = lost.words[word] >> bit & 1;
        if (mine) screen.forget(kKeys * tile_of_keys, kKeys * tile_of_keys + kKeys);
        multiply_tile(
            tiles.keys[0], kKeys * tile_of_keys,
            [&](const Part& acc, int key) {
              if (mine) screen.look_again(acc, key);
            },
            [] {});
        screen.list(false);
        __syncthreads();
      }
    }
  }
  finish_rows<T, kPanels>(p, head, tiles.entmax, lists);

  // Lane r answers for row r.
  const bool is_row = lane < kWarpRows && lists.query[lane] >= 0;
  const bool crowded = is_row && lists.bound[lane] == kCrowded, broad = is_row && lists.bound[lane] == kBroad;
  const int words = row_mask_words(p.q_len);
  if constexpr (kLong) {
    if (crowded || broad)
      atomicOr(p.broad_masks + int64_t{head} * words + lists.query[lane] / 32, 1u << lists.query[lane] % 32);
  } else {
    const unsigned of_crowded = __ballot_sync(kWarp, crowded), of_broad = __ballot_sync(kWarp, broad);
    const int64_t half_word = (int64_t{head} * words * 32 + warp_row) / 16;
    if (lane == 0 && warp_row < present) {
      reinterpret_cast<uint16_t*>(p.crowded_masks)[half_word] = static_cast<uint16_t>(of_crowded);
      reinterpret_cast<uint16_t*>(p.broad_masks)[half_word] = static_cast<uint16_t>(of_broad);
    }
  }
}

}  // namespace splash::gpu::entmax
