#pragma once
// Forward on Hopper (sm_90a): screen, solve, gather, in one launch (docs/how-the-flagship-works.md). A block
// of two warpgroups owns 128 queries: Q in registers, K (in float16) through a ring of stages that TMA fills,
// V only where p > 0. Two blocks per SM: one's products hide the other's solving and gathering.
//
// In: Q; K in float16, its errors and high-norm keys (prepare/). Out: output, tau and support of the rows
// that are not deferred; masks and bounds of those that are. The block's shared memory (ForwardTiles):
//
//   keys[stage]    TMA writes it after full[stage] was armed; warps read it between full[stage] and their
//                  arrival on empty[stage]. There is no producer warp: the last warp to release a stage
//                  issues the TMA load that refills it, so no warp waits for a producer.
//   full[stage]    One arrival, with the load's bytes. empty[stage]: one arrival per warp.
//   listed         It lies where keys were: written after the block's __syncthreads behind the last tile,
//                  when no load is in flight: each was waited for.
//   lists[warp]    That warp's alone (warp_lists.cuh).
//   head, errors   Written once, before the first __syncthreads.
//
// wgmma waits for all four warps of a warpgroup, a stage for all warps of the block. A warp compacts its list
// alone, when it is nearly full, and the others soon wait for it: rare work of one warp is rare work of the
// block, so it is kept small.

#include <type_traits>

#include "gpu/arch/bulk_copy.cuh"
#include "gpu/arch/lane.cuh"
#include "gpu/arch/mbarrier.cuh"
#include "gpu/arch/wgmma_f16.cuh"
#include "gpu/entmax/hopper/screen/screen.cuh"
#include "gpu/entmax/hopper/screen/tile_schedule.h"
#include "gpu/entmax/hopper/solve/finish.cuh"
#include "gpu/entmax/schedule/block_place.h"
#include "gpu/entmax/schedule/launch.cuh"

namespace splash::gpu::entmax::hopper {

// Where supports are broad, lists overflow, and the dense path is faster from the start. If a row's 16
// largest samples of two tiles lie within kBroadSpread in z, its support is broad: without other keys, each
// would have p of some 1/16. If they lie within kCloseSpread, more tiles are sampled first: an eighth of
// them, at least 512 keys. Where broad_samples (24) of the 32 samples then lie above the bound, expect some
// 55 keys in the support and 70 on the list, and the dense path begins to pay (measured with Gaussian scores,
// 4k and 16k keys).
constexpr float kBroadSpread = 0.13f, kCloseSpread = 1.0f;

// A block's shared memory. kPanels: of 64 dimensions. kLong: one block per SM, with lists as long as shared
// memory allows.
template <int kPanels, bool kLong>
struct ForwardTiles {
  static constexpr int kWarps = 8, kThreads = 32 * kWarps, kQueries = kWarps * kWarpRows;
  static constexpr int kBlocks = kLong || kPanels > 2 ? 1 : 2;  // per SM
  static constexpr int kKeys = kPanels == 1 ? 128 : 64, kPanelBytes = kKeys * 128, kStages = 3;
  using Lists = WarpLists<kLong ? 48 : 27, kLong ? 3072 : 1536>;

  union {
    alignas(1024) unsigned char keys[kStages][kPanels * kPanelBytes];
    alignas(16) int listed[kWarps][Lists::kMost];  // after the last tile: the joined lists
  };
  Lists lists[kWarps];
  uint64_t full[kStages], empty[kStages];
  float errors[kWarps];
  Head head;
};

// Loads the queries as wgmma's A fragments, in float16: 16 rows per warp, each scaled by a power of two to 8
// <= norm < 16. Rows and dimensions outside are zeros. unit: the scale's inverse. norm: at least the scaled
// row's; NaN or infinite where the row cannot be screened.
template <class T, int kSteps>
__device__ __forceinline__ void load_queries(const ForwardProblem& p, int head, const int (&queries)[2],
                                             uint32_t (&fragments)[kSteps][4], float (&unit)[2],
                                             float (&norm)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto* const q = static_cast<const uint16_t*>(p.q) + int64_t{head} * p.q_len * p.head_dim;
  float squares[2] = {};
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int query = queries[i % 2], column = 16 * step + 2 * (lane % 4) + 8 * (i / 2);
      fragments[step][i] = query >= 0 && column < p.head_dim
                               ? *reinterpret_cast<const uint32_t*>(q + int64_t{query} * p.head_dim + column)
                               : 0;
      const float2 pair = unpacked<T>(fragments[step][i]);
      squares[i % 2] = fmaf(pair.x, pair.x, fmaf(pair.y, pair.y, squares[i % 2]));
    }
  }
  float scale[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float row_norm = sqrtf(quad_sum(squares[half]));
    const int exponent = max(__float_as_int(row_norm) >> 23, 127 - 57);  // the floor of log2, biased
    scale[half] = __int_as_float((2 * 127 + 3 - exponent) << 23);
    unit[half] = __int_as_float((exponent - 3) << 23);
    norm[half] = row_norm < INFINITY ? fmaxf(1.0001f * row_norm * scale[half], 8.0f) : INFINITY;
  }
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = unpacked<T>(fragments[step][i]);
      fragments[step][i] = arch::pack_pair<__half>(scale[i % 2] * pair.x, scale[i % 2] * pair.y);
    }
  }
}

// Screens and finishes the tile-th kQueries rows of a head. present: how many rows the head has; with long
// lists, how many were deferred to this kernel.
template <class T, int kPanels, bool kLong>
__device__ __forceinline__ void screen_rows(const ForwardProblem& p, const CUtensorMap& k_map,
                                            const CUtensorMap& high_norm_map,
                                            ForwardTiles<kPanels, kLong>& tiles, int head, int tile,
                                            int present) {
  using Tiles = ForwardTiles<kPanels, kLong>;
  constexpr int kKeys = Tiles::kKeys, kStages = Tiles::kStages, kQueries = Tiles::kQueries;
  using Scores = uint32_t[kKeys / 4];
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int key_head = head / p.group;
  const int* const gathered = kLong ? p.rows.queries + int64_t{head} * p.q_len : nullptr;

  const auto query_of = [&](int row) { return row >= present ? -1 : kLong ? gathered[row] : row; };
  // The warp's rows: neighbours, or where rows are few, spread over the warps.
  const int first_row = tile * kQueries + (kLong ? warp : warp * kWarpRows);
  const auto row_at = [&](int i) { return first_row + (kLong ? Tiles::kWarps * i : i); };
  const auto end_of = [&](int query) { return max(min(query + p.reach, p.kv_len), 0); };
  const int block_end = end_of(query_of(min(tile * kQueries + kQueries, present) - 1));
  const int whole_end = end_of(query_of(tile * kQueries));  // every row of the block sees the keys below
  const TileSchedule schedule((block_end + kKeys - 1) / kKeys, kKeys,
                              p.segment > 0 ? whole_end / p.segment : 0, p.segment,
                              kLong ? 0 : p.sampled_keys);

  // Ring of key tiles. issue_load: by one elected thread, a position of the schedule into a stage that is
  // free.
  const auto tma_load = [&](const CUtensorMap& map, int tile_of_keys, int stage, uint64_t* full) {
    arch::mbarrier_arrive_expect(full, sizeof tiles.keys[0]);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel)
      arch::tensor_load(tiles.keys[stage] + panel * Tiles::kPanelBytes, &map, full, 64 * panel,
                        kKeys * tile_of_keys, key_head);
  };
  const auto issue_load = [&](auto sampling, int position, int stage) {
    uint64_t* const full = &tiles.full[stage];
    if (decltype(sampling)::value && schedule.is_high_norm(position))
      return tma_load(high_norm_map, schedule.segment(position), stage, full);
    const int tile_of_keys = decltype(sampling)::value && position < schedule.screen_begin
                                 ? schedule.recent(position)
                                 : schedule.screened(position);
    if (tile_of_keys >= 0) {
      tma_load(k_map, tile_of_keys, stage, full);
    } else {
      arch::mbarrier_arrive(full);
    }
  };
  const float* const errors = p.errors + int64_t{key_head} * ((p.kv_len + kErrorKeys - 1) / kErrorKeys);
  if (thread == 32) tiles.head = {entmax_of(p, head), p.bounds + int64_t{head} * p.q_len};
  if (thread == 0) {
    for (int s = 0; s < kStages; ++s) {
      arch::mbarrier_init(&tiles.full[s], 1);
      arch::mbarrier_init(&tiles.empty[s], Tiles::kWarps);
    }
    arch::mbarrier_init_fence();
    for (int i = 0; i < min(kStages, schedule.length()); ++i) issue_load(std::true_type{}, i, i);
  }
  const int queries[2] = {query_of(row_at(row_of(0))), query_of(row_at(row_of(1)))};
  uint32_t q[4 * kPanels][4];
  float unit[2], norm[2];
  load_queries<T>(p, head, queries, q, unit, norm);

  // The largest error of the screen's products with the block's keys; +inf where a key cannot be screened.
  float error = 0;
  for (int i = thread; i < (block_end + kErrorKeys - 1) / kErrorKeys; i += Tiles::kThreads)
    error = fmaxf(error, errors[i]);
  error = arch::warp_max(error);
  if (lane == 0) tiles.errors[warp] = error;
  __syncthreads();
  for (const float warp_error : tiles.errors) error = fmaxf(error, warp_error);

  auto& lists = tiles.lists[warp];
  if (lane % 4 == 0) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = queries[half], row = row_of(half);
      const int end = query < 0 ? 0 : end_of(query);
      lists.query[row] = query;
      lists.end[row] = end;
      lists.unit[row] = unit[half];
      const float margin = fmaf(1.001f * norm[half], error, 0x1p-24f);
      const bool screened = margin < INFINITY;
      lists.margin[row] = screened ? margin : 0;
      lists.bound[row] = query < 0  ? RowBound::of(RowState::overflowed)
                         : end == 0 ? RowBound::of(RowState::no_keys)
                         : kLong    ? RowBound{p.bounds[int64_t{head} * p.q_len + query] / unit[half]}
                                    : RowBound{-INFINITY};
      if (!screened) defer_row(lists, tiles.head, row, RowState::broad);
    }
  }
  __syncwarp();
  Screen<T, kKeys, typename Tiles::Lists> screen(lists, tiles.head);

  const auto descriptor_of = [](const unsigned char* keys) {
    return arch::uniform(arch::k_major_descriptor(keys));
  };
  const auto multiply = [&](Scores& acc, uint64_t tile) {
    arch::wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4 * kPanels; ++step) {
      const uint64_t columns = arch::advance(tile, step / 4 * Tiles::kPanelBytes + 32 * (step % 4));
      arch::wgmma_f16(acc, q[step], columns, step > 0);
    }
    arch::wgmma_commit();
  };
  // Calls use with the scores, -inf where a row does not see the key. The screening pass masks bits instead.
  // (seen has registers of its own: wgmma into registers that a branch may have changed would be serialised.)
  const auto with_mask = [&](const Scores& acc, int first_key, const auto& use) {
    if (first_key + kKeys <= whole_end) [[likely]]
      return use(acc);
    const int before = first_key + 2 * (lane % 4);
    const int limit[2] = {end_of(lists.query[row_of(0)]) - before, end_of(lists.query[row_of(1)]) - before};
    Scores seen;
#pragma unroll
    for (int j = 0; j < kKeys / 4; ++j) {
      const int visible = limit[j % 2] - 8 * (j / 2);
      const uint32_t one = (acc[j] & 0xFFFF) | (kNoScores & 0xFFFF0000);
      seen[j] = visible > 1 ? acc[j] : visible == 1 ? one : kNoScores;
    }
    use(seen);
  };
  // A warp releases a stage by its arrival on empty; the last warp to release it issues the load that refills
  // it.
  const int positions = schedule.length();
  using Ring = arch::RingPosition<kStages>;
  const auto release = [&](bool elected, const Ring& at) {
    return elected ? arch::mbarrier_arrive_pending(&tiles.empty[at.stage]) : 0;
  };
  const auto refill = [&](auto sampling, bool elected, uint64_t arrival, int position, const Ring& at) {
    if (elected && arch::mbarrier_was_last(arrival) && position + kStages < positions) {
      arch::mbarrier_wait(&tiles.empty[at.stage], at.parity);
      issue_load(sampling, position + kStages, at.stage);
    }
  };
  Ring ring;
  int position = 0;
  // An iteration, of two positions: while the tensor cores multiply the second tile, the warps use the first
  // one's scores. first_key: of the first tile; second_key: of the other, below 0 where there is none. use:
  // called with a tile's scores and its first key. sampling: whether this is the sampling pass.
  const auto multiply_tiles = [&](auto sampling, int first_key, int second_key, const auto& use) {
    const Ring first = ring;
    ring.next();
    const Ring second = ring;
    ring.next();
    Scores x, y;
    const uint64_t first_tile = descriptor_of(tiles.keys[first.stage]);
    const uint64_t second_tile = descriptor_of(tiles.keys[second.stage]);
    const bool elected =
        arch::lane_id() == 0;  // computed anew: kept, it would be spilled and reloaded each iteration
    arch::mbarrier_wait(&tiles.full[first.stage], first.parity);
    multiply(x, first_tile);
    arch::mbarrier_wait(&tiles.full[second.stage], second.parity);
    multiply(y, second_tile);
    arch::wgmma_wait<1>();
    const uint64_t first_arrival = release(elected, first);
    arch::wgmma_hold(x);  // after the arrival, to hide the latency of its result
    use(x, first_key);
    refill(sampling, elected, first_arrival, position, first);
    arch::wgmma_wait<0>();
    const uint64_t second_arrival = release(elected, second);
    arch::wgmma_hold(y);
    if (second_key >= 0) use(y, second_key);
    refill(sampling, elected, second_arrival, position + 1, second);
    position += kTilesPerIteration;
  };

  bool done = schedule.tiles == 0, dense_may_pay = false;
  // Ends the loop early, once all rows are deferred. Waits for the loads of the next kStages positions, which
  // refill has issued before any vote: none may land after the block's end, in another block's shared memory.
  const auto drain = [&] {
    done = true;
    for (int i = 0; i < kStages && position + i < positions; ++i, ring.next())
      arch::mbarrier_wait(&tiles.full[ring.stage], ring.parity);
  };
  const auto defer_to_dense = [&] {
    screen.defer_all();
    drain();
  };
  // Whether holds(half) is true of at least half of the block's rows. A quad's first lane answers for its
  // first row, the second lane for the other. By the whole block.
  const auto holds_for_most_rows = [&](const auto& holds) {
    const bool first_holds = holds(0), second_holds = holds(1);
    const int half = lane % 4;
    const bool counts =
        half < 2 && (half == 0 ? first_holds : second_holds) && lists.query[row_of(half % 2)] >= 0;
    return 2 * __syncthreads_count(counts) >= min(kQueries, present - tile * kQueries);
  };
  if (!kLong && !done) {  // the sampling pass; rows with long lists have bounds already
    Samples samples;
    const int eighth = max(512 / kKeys, schedule.tiles / 8);
    const int decision = min(schedule.screen_begin, eighth & ~1);
    while (position < schedule.screen_begin && !done) {
      // All rows see the high-norm keys; the first key 0 says so, too.
      const auto key_of = [&](int at) { return schedule.is_high_norm(at) ? 0 : kKeys * schedule.recent(at); };
      multiply_tiles(std::true_type{}, key_of(position), key_of(position + 1),
                     [&](const Scores& acc, int first_key) {
                       with_mask(acc, first_key, [&](const Scores& seen) { samples.take(seen); });
                     });
      if (position == kTilesPerIteration) {
        dense_may_pay =
            holds_for_most_rows([&](int half) { return screen.spread(samples, half) < kCloseSpread; });
        if (dense_may_pay &&
            holds_for_most_rows([&](int half) { return screen.spread(samples, half) < kBroadSpread; })) {
          defer_to_dense();
          continue;
        }
      }
      const bool decides = dense_may_pay && position == decision;
      if (position < schedule.screen_begin && !decides) continue;
      screen.bound_from(samples);
      if (!decides) continue;
      if (holds_for_most_rows([&](int half) { return screen.above_bound(samples, half) >= p.broad_samples; }))
        defer_to_dense();
    }
  }
  // The screening pass.
  screen.set_thresholds();
  int next_vote =
      schedule.screen_begin + schedule.tiles / 4;  // position: then the block votes whether to stop
  int key = kKeys * (schedule.tiles - 1);          // of the iteration's first tile
  while (position < positions && !done) {
    multiply_tiles(std::false_type{}, key, key - kKeys, [&](const Scores& acc, int first_key) {
      screen.compare(acc, first_key, first_key + kKeys > whole_end, arch::lane_id());
    });
    key -= kTilesPerIteration * kKeys;
    if (screen.nearly_full()) [[unlikely]]
      screen.compact(p, head);
    if (dense_may_pay && position >= next_vote) [[unlikely]] {
      next_vote += position - schedule.screen_begin;
      if (__syncthreads_and(screen.all_deferred())) drain();
    }
  }
  screen.save_columns();
  __syncthreads();  // joined lists come where key tiles were
  if (!screen.all_deferred()) finish_rows<T, kPanels>(p, head, tiles.head, lists, tiles.listed[warp]);

  // The masks of deferred rows. Lane r answers for row r.
  const bool is_row = lane < kWarpRows && lists.query[lane] >= 0;
  const bool overflowed = is_row && lists.bound[lane].is(RowState::overflowed);
  const bool broad = is_row && lists.bound[lane].is(RowState::broad);
  const int words = row_mask_words(p.q_len);
  if constexpr (kLong) {
    if (overflowed || broad)
      atomicOr(p.broad_masks + int64_t{head} * words + lists.query[lane] / 32, 1u << lists.query[lane] % 32);
  } else {
    const unsigned overflow_mask = __ballot_sync(kWarp, overflowed), broad_mask = __ballot_sync(kWarp, broad);
    const int64_t half_word = (int64_t{head} * words * 32 + first_row) / 16;
    if (lane == 0 && first_row < present) {
      reinterpret_cast<uint16_t*>(p.overflow_masks)[half_word] = static_cast<uint16_t>(overflow_mask);
      reinterpret_cast<uint16_t*>(p.broad_masks)[half_word] = static_cast<uint16_t>(broad_mask);
    }
  }
}

// Before the barriers are initialised again: the next tile of rows counts its positions from 0, and a live
// mbarrier must not be initialised. Behind the __syncthreads errors and head may be rewritten, too.
template <class Tiles>
__device__ __forceinline__ void invalidate_barriers(Tiles& tiles) {
  arch::fence_async_proxy();  // TMA writes next where the joined lists were
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int s = 0; s < Tiles::kStages; ++s) {
      arch::mbarrier_inval(&tiles.full[s]);
      arch::mbarrier_inval(&tiles.empty[s]);
    }
  }
}

template <class T, int kPanels, bool kLong>
__global__ void __launch_bounds__(ForwardTiles<kPanels, kLong>::kThreads,
                                  ForwardTiles<kPanels, kLong>::kBlocks)
    forward_kernel(const __grid_constant__ ForwardProblem p, const __grid_constant__ CUtensorMap k_map,
                   const __grid_constant__ CUtensorMap high_norm_map) {
  using Tiles = ForwardTiles<kPanels, kLong>;
  extern __shared__ __align__(1024) unsigned char dynamic[];
  Tiles& tiles = *reinterpret_cast<Tiles*>(dynamic);
  wait_for_kernels_before();
  const BlockPlace place(static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x) / p.heads, p.heads,
                         p.heads_together);
  if constexpr (kLong) {
    // Few rows are deferred to this kernel, mostly none: few blocks, each of which takes one tile of rows
    // after another.
    const int blocks_per_head = static_cast<int>(gridDim.x) / p.heads;
    for (int tile = place.tile; tile * Tiles::kQueries < p.rows.counts[place.head]; tile += blocks_per_head) {
      if (tile >= blocks_per_head) invalidate_barriers(tiles);
      screen_rows<T, kPanels, kLong>(p, k_map, high_norm_map, tiles, place.head, tile,
                                     p.rows.counts[place.head]);
    }
  } else {
    screen_rows<T, kPanels, kLong>(p, k_map, high_norm_map, tiles, place.head, place.tile, p.q_len);
  }
}

}  // namespace splash::gpu::entmax::hopper
