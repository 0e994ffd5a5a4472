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
// wgmma waits for all four warps of a warpgroup, a stage for all warps of the block. Where one warp
// moves its lists to the workspace (spill.cuh), the others soon wait for it: rare work of one warp is rare
// work of the block, so it is kept small.

#include <type_traits>

#include "gpu/arch/bulk_copy.cuh"
#include "gpu/arch/lane.cuh"
#include "gpu/arch/mbarrier.cuh"
#include "gpu/arch/wgmma_f16.cuh"
#include "gpu/entmax/arguments/key_range.h"
#include "gpu/entmax/hopper/screen/forward_kernel.h"
#include "gpu/entmax/hopper/screen/load_queries.cuh"
#include "gpu/entmax/hopper/screen/screen.cuh"
#include "gpu/entmax/hopper/screen/tile_schedule.h"
#include "gpu/entmax/hopper/solve/finish.cuh"
#include "gpu/entmax/schedule/block_place.h"
#include "gpu/entmax/schedule/launch.cuh"

namespace splash::gpu::entmax::hopper {

// Where supports are broad, lists cost more than the dense path, which multiplies all keys some four times.
// If a row's 16 largest samples of two tiles lie within kBroadSpread in z, its support is broad: without
// other keys, each would have p of some 1/16. If they lie within kCloseSpread, the block votes again when a
// share of the tiles is screened, and at doubling distances: it goes dense where most warps' rows have listed
// more than a share of all their keys. Measured on one H200 at d 64 (decision 0077):
// - alpha 1.5 and 2, Gaussian scores: a listed key takes some 65 ps and one on the dense path 2.1, so the
//   share is 2.1 / 65. Only what has been moved to the workspace counts, from a quarter of the tiles on.
// - Other alphas, as models learn them: a listed key takes 90 to 270 ps, the more the less even lists are,
//   and one on the dense path 3.2. The first eighth, which is near, has most of what is listed in the end:
//   all that is listed counts, from there on and after the last tile.
// - Under k_keep, when the other path takes 4.7 ps a key and what is listed is mostly not gathered: so, too.
// kFewListed keys are listed sooner than the dense path has begun.
constexpr float kBroadSpread = 0.13f, kCloseSpread = 1.0f;
constexpr int kLeastBroad = 64;  // a row whose range has fewer keys is not broad
constexpr int kFewListed = 128;
struct Votes {
  int first_share, keys_a_listed;  // one in so many tiles, and keys that stand for one that is listed
  bool count_columns;              // beside what is in the workspace

  static __device__ __forceinline__ Votes of(const Entmax& entmax, bool largest) {
    if (largest) return {8, 12, true};
    return entmax.is_square || entmax.is_linear ? Votes{4, 28, false} : Votes{8, 40, true};
  }
  __device__ __forceinline__ int most_listed(int keys) const { return max(keys / keys_a_listed, kFewListed); }
};

// Scores of which a sample is the largest (Samples::take). Under k_keep the k_keep-th largest sample should
// be little less than the k_keep-th largest score, and many of the largest scores are near: a pair of keys
// each.
constexpr int kSampleGroup = 8, kNearGroup = 2;

// Far samples (tile_schedule.h) cost products, and save pairs that the screening pass would list. The first
// two far tiles tell how many: so many of the block's threads hold a sample of theirs that exceeds the bound
// from near samples. A pair takes as long as 3.4 tiles of a row, and more samples rule out some 60 % of the
// pairs (measured): they are worth it where exceeding / kQueries / 2 * tiles * 0.6 * 3.4 > far tiles left.
constexpr bool worth_more_samples(int exceeding, int queries, int tiles, int far_left) {
  return exceeding * tiles >= queries * far_left;
}

// A block's shared memory. kPanels: of 64 dimensions. kOfLargest: of rows that keep their largest scores.
template <int kPanels, bool kOfLargest = false>
struct ForwardTiles {
  static constexpr int kWarps = 8, kThreads = 32 * kWarps, kQueries = kWarps * kWarpRows;
  static constexpr int kBlocks = kPanels > 2 ? 1 : 2;  // per SM
  static constexpr int kKeys = kPanels == 1 ? 128 : 64, kPanelBytes = kKeys * 128, kStages = 3;
  using Lists = WarpLists<27, 1536, kOfLargest>;

  union {
    alignas(1024) unsigned char keys[kStages][kPanels * kPanelBytes];
    alignas(16) int listed[kWarps][Lists::kMost];  // after the last tile: the joined lists
  };
  Lists lists[kWarps];
  uint64_t full[kStages], empty[kStages];
  float errors[kWarps];
  Head head;
};

// Finishes the calling warp's rows, whose lists are left. The thread's number is read afresh, and the rest
// from shared memory: what lived across the calls would take registers from them.
template <class Rows, class Tiles>
__device__ __forceinline__ void finish_lists(const ForwardProblem& p, Tiles& tiles) {
  const auto warp = [] { return arch::thread_index() / 32; };
  const auto finish = [&](const auto& rows_of) {
    return rows_of(tiles.head.index, tiles.lists[warp()], tiles.listed[warp()]);
  };
  const int finished = finish([&](int head, auto& lists, auto& listed) {
    return finish_rows<Rows>(p, head, tiles.head, lists, listed);
  });
  if (finished < kQuads) [[unlikely]] {
    finish([&](int head, auto& lists, auto& listed) {
      finish_long_quads<Rows>(p, head, tiles.head, lists, finished, listed);
    });
  }
}

// Finishes the calling warp's rows, if lists are left, and tells which are deferred.
template <class T, int kPanels, class Tiles>
__device__ __forceinline__ void finish_warp(const ForwardProblem& p, Tiles& tiles, bool has_lists) {
  if (has_lists) {
    if (kPanels == 1 && p.head_dim == 64)
      finish_lists<HeadRows<T, kPanels, kPanels == 1>>(p, tiles);
    else
      finish_lists<HeadRows<T, kPanels, false>>(p, tiles);
  }

  // The masks of deferred rows. Lane r answers for row r.
  const int lane = arch::lane_id(), warp = arch::thread_index() / 32;
  const int first_row = tiles.head.first_row + warp * kWarpRows;
  const auto& lists = tiles.lists[warp];
  const bool is_row = lane < kWarpRows && lists.query[lane] >= 0;
  const unsigned deferred = __ballot_sync(kWarp, is_row && lists.bound[lane].is_deferred());
  const int64_t half_word = (int64_t{tiles.head.index} * row_mask_words(p.q_len) * 32 + first_row) / 16;
  if (lane == 0 && first_row < p.q_len) {
    reinterpret_cast<uint16_t*>(p.broad_masks)[half_word] = static_cast<uint16_t>(deferred);
    if (p.unstored_masks != nullptr)
      reinterpret_cast<uint16_t*>(p.unstored_masks)[half_word] =
          static_cast<uint16_t>(deferred | lists.unstored);
  }
}

// Screens and finishes the rows of a head from `first` on and below `end`: at most kQueries. kRanges: whether
// rows see ranges of keys (arguments/key_range.h). Neither end of a range falls from row to row, so a block's
// first and last rows tell which tiles some row sees, and which keys all see.
//
// The queries are asked for while the keys are still prepared: the kernel that prepares them lets this one
// start only after its own wait, so whatever wrote the queries is done.
template <class T, int kPanels, RowKeys kRows, class Tiles>
__device__ __forceinline__ void screen_rows(const ForwardProblem& p, const CUtensorMap& k_map,
                                            const CUtensorMap& high_norm_map, Tiles& tiles, int head,
                                            int first, int end) {
  constexpr bool kRanges = kRows != RowKeys::below, kLargest = kRows == RowKeys::largest;
  constexpr int kKeys = Tiles::kKeys, kStages = Tiles::kStages, kQueries = Tiles::kQueries;
  using Scores = uint32_t[kKeys / 4];
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int key_head = head / p.group;

  const int first_row = first + warp * kWarpRows;
  const auto query_of = [&](int row) { return first_row + row < end ? first_row + row : -1; };
  const int queries[2] = {query_of(row_of(0)), query_of(row_of(1))};
  uint32_t q[4 * kPanels][4];
  load_queries(p, head, queries, q);
  wait_for_kernels_before();

  const auto range = [&](int query) -> KeyRange {
    if constexpr (kRanges) return range_of(p, query);
    return {0, max(min(query + p.reach, p.kv_len), 0)};
  };
  const KeyRange first_range = range(first), last_range = range(end - 1);
  const int block_begin = first_range.begin, block_end = last_range.end;  // of the keys that a row sees
  const int whole_begin = last_range.begin, whole_end = first_range.end;  // of those that all rows see

  // The largest error of the screen's products with the block's keys; +inf where a key cannot be screened.
  const float* const errors = p.errors + int64_t{key_head} * ((p.kv_len + kErrorKeys - 1) / kErrorKeys);
  float error = 0;
  for (int i = block_begin / kErrorKeys + thread; i < (block_end + kErrorKeys - 1) / kErrorKeys;
       i += Tiles::kThreads)
    error = fmaxf(error, errors[i]);

  Span segments{0, 0};
  if (p.segment > 0) segments.end = whole_end / p.segment;
  if (kRanges && p.segment > 0) segments.begin = (whole_begin + p.segment - 1) / p.segment;
  const TileSchedule schedule({block_begin / kKeys, (block_end + kKeys - 1) / kKeys}, kKeys, segments,
                              p.segment, p.sampled_keys);

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
                                 ? schedule.sampled(position)
                                 : schedule.screened(position);
    if (tile_of_keys >= 0) {
      tma_load(k_map, tile_of_keys, stage, full);
    } else {
      arch::mbarrier_arrive(full);
    }
  };
  if (thread == 32)
    tiles.head = {entmax_of(p, head), p.bounds + int64_t{head} * p.q_len, head, key_head, first};
  if (thread == 0) {
    for (int s = 0; s < kStages; ++s) {
      arch::mbarrier_init(&tiles.full[s], 1);
      arch::mbarrier_init(&tiles.empty[s], Tiles::kWarps);
    }
    arch::mbarrier_init_fence();
    for (int i = 0; i < min(kStages, schedule.length()); ++i) issue_load(std::true_type{}, i, i);
  }
  float unit[2], norm[2];
  scale_queries<T>(q, unit, norm);
  error = arch::warp_max(error);
  if (lane == 0) tiles.errors[warp] = error;
  __syncthreads();
  for (const float warp_error : tiles.errors) error = fmaxf(error, warp_error);

  auto& lists = tiles.lists[warp];
  lists.spilled[lane] = lists.counts[lane] = 0;
  if (lane == 0) {
    lists.slot = -1;
    lists.unstored = 0;
  }
  if (lane % 4 == 0) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = queries[half], row = row_of(half);
      const KeyRange seen = query < 0 ? KeyRange{0, 0} : range(query);
      const int end = seen.begin < seen.end ? seen.end : 0;
      lists.query[row] = query;
      lists.end[row] = end;
      if constexpr (kRanges) lists.begin[row] = seen.begin;
      lists.unit[row] = unit[half];
      const float margin = fmaf(1.001f * norm[half], error, 0x1p-24f);
      const bool screened = margin < INFINITY;
      lists.margin[row] = screened ? margin : 0;
      lists.bound[row] = query < 0  ? RowBound::of(RowState::broad)
                         : end == 0 ? RowBound::of(RowState::no_keys)
                                    : RowBound{-INFINITY};
      if (!screened) defer_row(lists, tiles.head, row);
    }
  }
  __syncwarp();
  Screen<kKeys, kRanges, typename Tiles::Lists> screen(lists, tiles.head);

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
  const auto is_whole = [&](int first_key) {
    return first_key + kKeys <= whole_end && (!kRanges || first_key >= whole_begin);
  };
  // Calls use with the scores, -inf where a row does not see the key. The screening pass masks bits instead.
  // (seen has registers of its own: wgmma into registers that a branch may have changed would be serialised.)
  const auto with_mask = [&](const Scores& acc, int first_key, const auto& use) {
    if (is_whole(first_key)) [[likely]]
      return use(acc);
    const int before = first_key + 2 * (lane % 4);
    const int limit[2] = {lists.end[row_of(0)] - before, lists.end[row_of(1)] - before};
    Scores seen;
#pragma unroll
    for (int j = 0; j < kKeys / 4; ++j) {
      const int visible = limit[j % 2] - 8 * (j / 2);
      const uint32_t one = (acc[j] & 0xFFFF) | (kNoScores & 0xFFFF0000);
      seen[j] = visible > 1 ? acc[j] : visible == 1 ? one : kNoScores;
    }
    if constexpr (kRanges) {
      const int skipped[2] = {lists.begin[row_of(0)] - before, lists.begin[row_of(1)] - before};
#pragma unroll
      for (int j = 0; j < kKeys / 4; ++j) {
        const int hidden = skipped[j % 2] - 8 * (j / 2);
        const uint32_t one = (seen[j] & 0xFFFF0000) | (kNoScores & 0xFFFF);
        seen[j] = hidden < 1 ? seen[j] : hidden == 1 ? one : kNoScores;
      }
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
  const auto load_next = [&](auto sampling, bool elected, uint64_t arrival, int next, const Ring& at) {
    if (elected && arch::mbarrier_was_last(arrival) && next < positions) {
      arch::mbarrier_wait(&tiles.empty[at.stage], at.parity);
      issue_load(sampling, next, at.stage);
    }
  };
  const auto refill = [&](auto sampling, bool elected, uint64_t arrival, int position, const Ring& at) {
    load_next(sampling, elected, arrival, position + kStages, at);
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
  const auto may_be_broad = [&](int row) {
    return lists.query[row] >= 0 && (!kRanges || lists.end[row] - lists.begin[row] >= kLeastBroad);
  };
  // Whether holds(half) is true of at least half of the block's rows. A quad's first lane answers for its
  // first row, the second lane for the other. By the whole block.
  const auto holds_for_most_rows = [&](const auto& holds) {
    const bool first_holds = holds(0), second_holds = holds(1);
    const int half = lane % 4;
    const bool counts =
        half < 2 && (half == 0 ? first_holds : second_holds) && may_be_broad(row_of(half % 2));
    return 2 * __syncthreads_count(counts) >= end - first;
  };
  // Ends the sampling pass early. The tiles that are loaded already are left out, unread.
  const auto start_screen = [&] {
    const bool elected = arch::lane_id() == 0;
    for (int i = 0; i < kStages; ++i, ring.next()) {
      arch::mbarrier_wait(&tiles.full[ring.stage], ring.parity);
      load_next(std::true_type{}, elected, release(elected, ring), schedule.screen_begin + i, ring);
    }
    position = schedule.screen_begin;
  };
  if (!done) {  // the sampling pass
    Samples<decltype(screen)::kSamples> samples;
    int above_before = 0;  // samples above the bound from near ones
    const int probed = schedule.far_begin + kTilesPerIteration;
    while (position < schedule.screen_begin && !done) {
      // All rows see the high-norm keys; the first key whole_begin says so, too.
      const auto key_of = [&](int at) {
        return schedule.is_high_norm(at) ? whole_begin : kKeys * schedule.sampled(at);
      };
      const auto sample = [&](auto group) {
        multiply_tiles(
            std::true_type{}, key_of(position), key_of(position + 1), [&](const Scores& acc, int first_key) {
              with_mask(acc, first_key,
                        [&](const Scores& seen) { samples.template take<decltype(group)::value>(seen); });
            });
      };
      // The choice is around the products: within, registers would not suffice.
      constexpr int kFirstGroup = kLargest ? kNearGroup : kSampleGroup;
      if (kLargest && position < schedule.far_begin)
        sample(std::integral_constant<int, kFirstGroup>{});
      else
        sample(std::integral_constant<int, kSampleGroup>{});
      if (position == kTilesPerIteration) {
        dense_may_pay =
            holds_for_most_rows([&](int half) { return screen.spread(samples, half) < kCloseSpread; });
        if (dense_may_pay && !(kLargest && p.k_keep <= samples.kOfRow) &&
            holds_for_most_rows([&](int half) { return screen.spread(samples, half) < kBroadSpread; })) {
          defer_to_dense();
          continue;
        }
      }
      if (position == probed && position < schedule.screen_begin) {
        const int exceeding = __syncthreads_count(screen.above_threshold(samples) > above_before);
        if (!worth_more_samples(exceeding, kQueries, schedule.tiles, schedule.screen_begin - position)) {
          start_screen();
          break;
        }
      }
      const bool near_end = position == schedule.far_begin;
      if (!near_end && position < schedule.screen_begin) continue;
      screen.bound_from(samples, near_end ? 4 : 2, p.k_keep);
      screen.set_thresholds();
      if (near_end) above_before = screen.above_threshold(samples);
    }
  }
  // The screening pass.
  // Anew each time, to save registers.
  const auto votes = [&] { return Votes::of(tiles.head.entmax, kLargest); };
  int next_vote = schedule.screen_begin +
                  schedule.tiles / votes().first_share;  // position: then the block votes whether to stop
  int key = kKeys * schedule.last_tile();                // of the iteration's first tile
  while (position < positions && !done) {
    const int second_key = !kRanges || key - kKeys >= kKeys * schedule.first_tile ? key - kKeys : -1;
    multiply_tiles(std::false_type{}, key, second_key, [&](const Scores& acc, int first_key) {
      screen.compare(acc, first_key, !is_whole(first_key), arch::lane_id());
    });
    key -= kTilesPerIteration * kKeys;
    if (screen.nearly_full()) [[unlikely]]
      screen.spill(p.spill);
    if (dense_may_pay && position >= next_vote) [[unlikely]] {
      next_vote = 2 * position - schedule.screen_begin;
      const bool counts_columns = votes().count_columns;
      if (counts_columns) {
        next_vote = min(next_vote, max(positions, position + 1));  // once more after the last tile
        screen.save_columns();
      }
      const int most = kWarpRows * votes().most_listed(block_end - block_begin);
      const bool is_broad = screen.all_deferred() || listed_keys(lists, counts_columns) > most;
      const int rows = end - first;  // warps behind them have none, and no vote
      const bool votes_so = is_broad && lane == 0 && kWarpRows * warp < rows;
      if (2 * kWarpRows * __syncthreads_count(votes_so) >= rows) defer_to_dense();
    }
  }
  screen.save_columns();
  __syncthreads();  // joined lists come where key tiles were
  finish_warp<T, kPanels>(p, tiles, !screen.all_deferred() || lists.slot >= 0);
}

template <class T, int kPanels, RowKeys kRows>
__global__ void __launch_bounds__(ForwardTiles<kPanels>::kThreads, ForwardTiles<kPanels>::kBlocks)
    forward_kernel(const __grid_constant__ ForwardProblem p, const __grid_constant__ CUtensorMap k_map,
                   const __grid_constant__ CUtensorMap high_norm_map) {
  using Tiles = ForwardTiles<kPanels, kRows == RowKeys::largest>;
  extern __shared__ __align__(1024) unsigned char dynamic[];
  Tiles& tiles = *reinterpret_cast<Tiles*>(dynamic);
  const BlockPlace place(static_cast<int>(blockIdx.x), (p.q_len + Tiles::kQueries - 1) / Tiles::kQueries,
                         p.heads, p.heads_together);
  screen_rows<T, kPanels, kRows>(p, k_map, high_norm_map, tiles, place.head, place.tile * Tiles::kQueries,
                                 min((place.tile + 1) * Tiles::kQueries, p.q_len));
}

}  // namespace splash::gpu::entmax::hopper
