#pragma once
// Forward on Hopper (sm_90a): screen, solve, gather, in one launch. A block of two warpgroups owns 128
// queries: Q in registers, K (in float16) through a ring of tiles that the copy engine fills, V only where
// p > 0. Two blocks a multiprocessor, so that one's products hide the other's solving and gathering.
//
// A product waits for all four warps of a warpgroup, a tile's place in the ring for all warps. So what a warp
// does only now and then, such as listing pairs, all do in the same turns: else each would wait for each.

#include <type_traits>

#include "gpu/arch/bulk_copy.cuh"
#include "gpu/arch/lane.cuh"
#include "gpu/arch/mbarrier.cuh"
#include "gpu/arch/wgmma_f16.cuh"
#include "gpu/entmax/finish.cuh"
#include "gpu/entmax/launch.cuh"
#include "gpu/entmax/screen.cuh"
#include "gpu/entmax/tile_order.h"

namespace splash::gpu::entmax {

// Where supports are broad, lists outgrow their room, and the dense path is faster from the start. If a row's
// 16 largest samples of two tiles lie within kBroadSpread in z, its support is broad: had it no other keys,
// each would have p of some 1/16. If within kCloseSpread, more tiles are asked, an eighth of them, 512 keys
// at least: where broad_samples, 24, of the 32 samples lie above the bound, some 55 keys are to be expected
// in the support and 70 on the list, and the dense path begins to pay (measured, Gaussian scores, 4k and 16k
// keys).
constexpr float kBroadSpread = 0.13f, kCloseSpread = 1.0f;

// kPanels: of 64 dimensions. kLong: one block a multiprocessor, so that lists are as long as shared memory
// allows.
template <int kPanels, bool kLong>
struct ForwardTiles {
  static constexpr int kWarps = 8, kThreads = 32 * kWarps, kQueries = kWarps * kWarpRows;
  static constexpr int kBlocks = kLong || kPanels > 2 ? 1 : 2;  // a multiprocessor
  static constexpr int kKeys = kPanels == 1 ? 128 : 64, kPanelBytes = kKeys * 128, kStages = 3;
  using Lists = RowLists<kLong ? 48 : 27, kLong ? 3072 : 1536>;

  union {
    alignas(1024) unsigned char keys[kStages][kPanels * kPanelBytes];
    alignas(16) int listed[kWarps][Lists::kMost];  // when all keys have been looked at
  };
  Lists lists[kWarps];
  uint64_t full[kStages], empty[kStages];
  float errors[kWarps];
  Head head;
};

// The queries' fragments as wgmma takes them from registers, in float16: 16 rows a warp, each scaled by a
// power of two, such that 8 <= norm < 16. Rows and dimensions outside are zeros. unit: the scale's inverse;
// norm: the scaled row's, at least, or NaN or infinite where the row cannot be screened.
template <class T, int kSteps>
__device__ __forceinline__ void load_queries(const Problem& p, int head, const int (&queries)[2],
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
    const float of_row = sqrtf(quad_sum(squares[half]));
    const int exponent = max(__float_as_int(of_row) >> 23, 127 - 57);  // the floor of log2, biased
    scale[half] = __int_as_float((2 * 127 + 3 - exponent) << 23);
    unit[half] = __int_as_float((exponent - 3) << 23);
    norm[half] = of_row < INFINITY ? fmaxf(1.0001f * of_row * scale[half], 8.0f) : INFINITY;
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

// A tile's rows of a head: the tile-th kQueries of `present`.
template <class T, int kPanels, bool kLong>
__device__ __forceinline__ void screen_rows(const Problem& p, const CUtensorMap& k_map,
                                            const CUtensorMap& picked_map,
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
  const TileOrder order((block_end + kKeys - 1) / kKeys, kKeys, p.segment > 0 ? whole_end / p.segment : 0,
                        p.segment, kLong ? 0 : p.sampled_keys);

  const auto load = [&](const CUtensorMap& map, int tile_of_keys, int stage, uint64_t* full) {
    arch::mbarrier_arrive_expect(full, sizeof tiles.keys[0]);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel)
      arch::tensor_load(tiles.keys[stage] + panel * Tiles::kPanelBytes, &map, full, 64 * panel,
                        kKeys * tile_of_keys, key_head);
  };
  const auto load_turn = [&](auto sampling, int turn, int stage) {
    uint64_t* const full = &tiles.full[stage];
    if (decltype(sampling)::value && order.is_picked(turn))
      return load(picked_map, order.segment(turn), stage, full);
    const int tile_of_keys =
        decltype(sampling)::value && turn < order.screen ? order.recent(turn) : order.screened(turn);
    if (tile_of_keys >= 0) {
      load(k_map, tile_of_keys, stage, full);
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
    for (int i = 0; i < min(kStages, order.turns()); ++i) load_turn(std::true_type{}, i, i);
  }
  const int queries[2] = {query_of(row_at(row_of(0))), query_of(row_at(row_of(1)))};
  uint32_t q[4 * kPanels][4];
  float unit[2], norm[2];
  load_queries<T>(p, head, queries, q, unit, norm);

  // Of the screen's product, the largest of the block's keys: +inf where it cannot deal with one.
  float error = 0;
  for (int i = thread; i < (block_end + kErrorKeys - 1) / kErrorKeys; i += Tiles::kThreads)
    error = fmaxf(error, errors[i]);
  error = arch::warp_max(error);
  if (lane == 0) tiles.errors[warp] = error;
  __syncthreads();
  for (const float of_warp : tiles.errors) error = fmaxf(error, of_warp);

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
      lists.bound[row] = query < 0  ? kCrowded
                         : end == 0 ? kNothing
                         : kLong    ? p.bounds[int64_t{head} * p.q_len + query] / unit[half]
                                    : -INFINITY;
      if (!screened) close_row(lists, tiles.head, row, kBroad);
    }
  }
  __syncwarp();
  Screen<T, kKeys, kTilesAtOnce, typename Tiles::Lists> screen(lists, tiles.head);

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
  // Calls look with what the rows see: elsewhere -inf. The screen does without: what is listed of a tile is
  // looked at once more. (Written to registers of their own: products into ones that a branch may have
  // changed would wait for one another.)
  const auto show = [&](const Scores& acc, int first_key, const auto& look) {
    if (first_key + kKeys <= whole_end) [[likely]]
      return look(acc);
    const int before = first_key + 2 * (lane % 4);
    const int left[2] = {end_of(lists.query[row_of(0)]) - before, end_of(lists.query[row_of(1)]) - before};
    Scores seen;
#pragma unroll
    for (int j = 0; j < kKeys / 4; ++j) {
      const int visible = left[j % 2] - 8 * (j / 2);
      const uint32_t one = (acc[j] & 0xFFFF) | (kNoScores & 0xFFFF0000);
      seen[j] = visible > 1 ? acc[j] : visible == 1 ? one : kNoScores;
    }
    look(seen);
  };
  // The warp that leaves a tile last has the tile of a later turn loaded in its place: no warp waits for
  // that.
  const int turns = order.turns();
  using Ring = arch::RingPosition<kStages>;
  const auto leave = [&](bool is_first, const Ring& at) {
    return is_first ? arch::mbarrier_arrive_pending(&tiles.empty[at.stage]) : 0;
  };
  const auto refill = [&](auto sampling, bool is_first, uint64_t left, int turn, const Ring& at) {
    if (is_first && arch::mbarrier_was_last(left) && turn + kStages < turns) {
      arch::mbarrier_wait(&tiles.empty[at.stage], at.parity);
      load_turn(sampling, turn + kStages, at.stage);
    }
  };
  Ring ring;
  int turn = 0;
  // A round, of two turns: while the tensor cores work on the second tile, the warps look through the first.
  // first_key: of the first tile; second_key: of the other, below 0 where there is none. look: called with a
  // tile's scores and its first key. sampling: whether this is the pass over samples.
  const auto take_tiles = [&](auto sampling, int first_key, int second_key, const auto& look) {
    const Ring first = ring;
    ring.next();
    const Ring second = ring;
    ring.next();
    Scores x, y;
    const uint64_t first_tile = descriptor_of(tiles.keys[first.stage]);
    const uint64_t second_tile = descriptor_of(tiles.keys[second.stage]);
    const bool is_first = arch::lane_id() == 0;  // read anew: spilled, it would be read back in each round
    arch::mbarrier_wait(&tiles.full[first.stage], first.parity);
    multiply(x, first_tile);
    arch::mbarrier_wait(&tiles.full[second.stage], second.parity);
    multiply(y, second_tile);
    arch::wgmma_wait<1>();
    const uint64_t left_first = leave(is_first, first);
    arch::wgmma_hold(x);  // after the arrival, whose result is on its way then
    look(x, first_key);
    refill(sampling, is_first, left_first, turn, first);
    arch::wgmma_wait<0>();
    const uint64_t left_second = leave(is_first, second);
    arch::wgmma_hold(y);
    if (second_key >= 0) look(y, second_key);
    refill(sampling, is_first, left_second, turn + 1, second);
    turn += kTilesAtOnce;
  };

  bool done = order.count == 0, dense_may_pay = false;
  // Nothing may land after the block's end: where it ends early, some tiles are under way.
  const auto stop = [&] {
    done = true;
    for (int i = 0; i < kStages && turn + i < turns; ++i, ring.next())
      arch::mbarrier_wait(&tiles.full[ring.stage], ring.parity);
  };
  const auto leave_to_dense = [&] {
    screen.close_all();
    stop();
  };
  // Whether holds(half) is true of most of the rows that the block has; a quad's first lane asks it of the
  // first of its rows, the second of the other.
  const auto most_rows = [&](const auto& holds) {
    const bool of_first = holds(0), of_second = holds(1);
    const int half = lane % 4;
    const bool counts = half < 2 && (half == 0 ? of_first : of_second) && lists.query[row_of(half % 2)] >= 0;
    return 2 * __syncthreads_count(counts) >= min(kQueries, present - tile * kQueries);
  };
  if (!kLong && !done) {  // rows that outgrew their lists have bounds
    Samples samples;
    const int eighth = max(512 / kKeys, order.count / 8);
    const int decision = min(order.screen, eighth & ~1);
    while (turn < order.screen && !done) {
      // Picked keys are seen by all rows, as are those from 0 on.
      const auto key_of = [&](int turn) { return order.is_picked(turn) ? 0 : kKeys * order.recent(turn); };
      take_tiles(std::true_type{}, key_of(turn), key_of(turn + 1), [&](const Scores& acc, int first_key) {
        show(acc, first_key, [&](const Scores& seen) { samples.take(seen); });
      });
      if (turn == kTilesAtOnce) {
        dense_may_pay = most_rows([&](int half) { return screen.spread(samples, half) < kCloseSpread; });
        if (dense_may_pay &&
            most_rows([&](int half) { return screen.spread(samples, half) < kBroadSpread; })) {
          leave_to_dense();
          continue;
        }
      }
      const bool decides = dense_may_pay && turn == decision;
      if (turn < order.screen && !decides) continue;
      screen.bound_from(samples);
      if (!decides) continue;
      if (most_rows([&](int half) { return screen.above_bound(samples, half) >= p.broad_samples; }))
        leave_to_dense();
    }
  }
  screen.aim();
  int meeting = order.screen + order.count / 4;  // the turn from which on all may find that they can stop
  int key = kKeys * (order.count - 1);           // of the round's first tile
  while (turn < turns && !done) {
    take_tiles(std::false_type{}, key, key - kKeys, [&](const Scores& acc, int first_key) {
      screen.look(acc, first_key, first_key + kKeys > whole_end, arch::lane_id());
    });
    key -= kTilesAtOnce * kKeys;
    if (screen.has_little_room()) [[unlikely]]
      screen.make_room(p, head);
    if (dense_may_pay && turn >= meeting) [[unlikely]] {
      meeting += turn - order.screen;
      if (__syncthreads_and(screen.closed())) stop();
    }
  }
  screen.save_columns();
  __syncthreads();  // lists come where tiles were
  if (!screen.closed()) finish_rows<T, kPanels>(p, head, tiles.head, lists, tiles.listed[warp]);

  // Lane r answers for row r.
  const bool is_row = lane < kWarpRows && lists.query[lane] >= 0;
  const bool crowded = is_row && lists.bound[lane] == kCrowded, broad = is_row && lists.bound[lane] == kBroad;
  const int words = row_mask_words(p.q_len);
  if constexpr (kLong) {
    if (crowded || broad)
      atomicOr(p.broad_masks + int64_t{head} * words + lists.query[lane] / 32, 1u << lists.query[lane] % 32);
  } else {
    const unsigned of_crowded = __ballot_sync(kWarp, crowded), of_broad = __ballot_sync(kWarp, broad);
    const int64_t half_word = (int64_t{head} * words * 32 + first_row) / 16;
    if (lane == 0 && first_row < present) {
      reinterpret_cast<uint16_t*>(p.crowded_masks)[half_word] = static_cast<uint16_t>(of_crowded);
      reinterpret_cast<uint16_t*>(p.broad_masks)[half_word] = static_cast<uint16_t>(of_broad);
    }
  }
}

// Before the barriers' memory is used for new ones.
template <class Tiles>
__device__ __forceinline__ void forget_barriers(Tiles& tiles) {
  arch::fence_async_proxy();  // tiles come where scores were
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
    forward_kernel(const __grid_constant__ Problem p, const __grid_constant__ CUtensorMap k_map,
                   const __grid_constant__ CUtensorMap picked_map) {
  using Tiles = ForwardTiles<kPanels, kLong>;
  extern __shared__ __align__(1024) unsigned char dynamic[];
  Tiles& tiles = *reinterpret_cast<Tiles*>(dynamic);
  wait_for_kernels_before();
  const BlockPlace place(static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x) / p.heads, p.heads,
                         p.heads_together);
  if constexpr (kLong) {
    // Few rows come here, mostly none: so there are few blocks, which take one tile of rows after the other.
    const int apart = static_cast<int>(gridDim.x) / p.heads;
    for (int tile = place.tile; tile * Tiles::kQueries < p.rows.counts[place.head]; tile += apart) {
      if (tile >= apart) forget_barriers(tiles);
      screen_rows<T, kPanels, kLong>(p, k_map, picked_map, tiles, place.head, tile,
                                     p.rows.counts[place.head]);
    }
  } else {
    screen_rows<T, kPanels, kLong>(p, k_map, picked_map, tiles, place.head, place.tile, p.q_len);
  }
}

}  // namespace splash::gpu::entmax
