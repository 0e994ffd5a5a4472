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
#include "gpu/entmax/screen.cuh"
#include "gpu/entmax/tile_order.h"

namespace splash::gpu::entmax {

// Where supports are broad, lists outgrow their room, and the dense path is faster from the start. If a row's
// 16 largest samples of two tiles lie within kBroadSpread in z, its support is broad: had it no other keys,
// each would have p of some 1/16. If within kCloseSpread, more tiles are asked, an eighth of them, 512 keys
// at least.
constexpr float kBroadSpread = 0.13f, kCloseSpread = 1.0f;
// Of the 32 samples of so many keys, those above the bound that tell of some 40 in the support, where the
// dense path begins to pay: a fit to Gaussian scores.
__device__ __forceinline__ float broad_samples(float keys) {
  return fmaf(3.2f, sqrtf(keys / 128), 11.6f);
}

// Tiles of which a warp had no room for what it was to put aside: bit i % 32 of word i / 32 is the i-th tile.
struct LostTiles {
  static constexpr int kMost = 1024;
  unsigned words[kMost / 32];
};

// When a warp lists what was put aside: the same for all of a block, but for a warp whose room is nearly
// full.
struct Pace {
  int interval;  // rounds from one time to the next
  int most;      // groups that waited then, since the warps last met
  int meet;      // the turn from which on the warps meet, to agree on another interval
  int times;     // how often they met
};

// kPanels: of 64 dimensions. kLong: one block a multiprocessor, so that lists are as long as shared memory
// allows.
template <int kPanels, bool kLong>
struct ForwardTiles {
  static constexpr int kWarps = 8, kThreads = 32 * kWarps, kQueries = kWarps * kWarpRows;
  static constexpr int kBlocks = kLong || kPanels > 2 ? 1 : 2;  // a multiprocessor
  static constexpr int kKeys = kPanels == 1 ? 128 : 64, kPanelBytes = kKeys * 128, kStages = 3;
  using Rows = WarpRows<(!kLong ? 92 : kPanels > 2 ? 220 : 300), 92>;

  union {
    alignas(1024) unsigned char keys[kStages][kPanels * kPanelBytes];
    typename Rows::Lists::ExactScores scores[kWarps];  // when all keys have been looked at
  };
  Rows rows[kWarps];
  uint64_t full[kStages], empty[kStages], again;
  int seen[2][kWarps];  // groups that waited in each warp when it last listed them, and the time before
  Pace pace[kWarps];    // all the same
  LostTiles lost[kWarps];
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

template <class T, int kPanels, bool kLong>
__global__ void __launch_bounds__(ForwardTiles<kPanels, kLong>::kThreads,
                                  ForwardTiles<kPanels, kLong>::kBlocks)
    forward_kernel(const __grid_constant__ Problem p, const __grid_constant__ CUtensorMap k_map) {
  using Tiles = ForwardTiles<kPanels, kLong>;
  constexpr int kKeys = Tiles::kKeys, kStages = Tiles::kStages, kQueries = Tiles::kQueries;
  using Scores = uint32_t[kKeys / 4];
  extern __shared__ __align__(1024) unsigned char dynamic[];
  Tiles& tiles = *reinterpret_cast<Tiles*>(dynamic);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const BlockPlace place(static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x) / p.heads, p.heads);
  const int head = place.head, tile = place.tile, key_head = head / p.group;
  const int* const gathered = kLong ? p.rows.queries + int64_t{head} * p.q_len : nullptr;
  const int present = kLong ? p.rows.counts[head] : p.q_len;
  if (tile * kQueries >= present) return;

  const auto query_of = [&](int row) { return row >= present ? -1 : kLong ? gathered[row] : row; };
  // The warp's rows: neighbours, or where rows are few, spread over the warps.
  const int first_row = tile * kQueries + (kLong ? warp : warp * kWarpRows);
  const auto row_at = [&](int i) { return first_row + (kLong ? Tiles::kWarps * i : i); };
  const auto end_of = [&](int query) { return max(min(query + p.reach, p.kv_len), 0); };
  const int block_end = end_of(query_of(min(tile * kQueries + kQueries, present) - 1));
  const int whole_end = end_of(query_of(tile * kQueries));  // every row of the block sees the keys below
  const TileOrder order((block_end + kKeys - 1) / kKeys);

  const auto load = [&](int tile_of_keys, int stage, uint64_t* full) {
    arch::mbarrier_arrive_expect(full, sizeof tiles.keys[0]);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel)
      arch::tensor_load(tiles.keys[stage] + panel * Tiles::kPanelBytes, &k_map, full, 64 * panel,
                        kKeys * tile_of_keys, key_head);
  };
  const float* const errors = p.errors + int64_t{key_head} * ((p.kv_len + kErrorKeys - 1) / kErrorKeys);
  if (thread == 0) {
    tiles.head = {entmax_of(p, head), p.bounds + int64_t{head} * p.q_len, errors};
    for (int s = 0; s < kStages; ++s) {
      arch::mbarrier_init(&tiles.full[s], 1);
      arch::mbarrier_init(&tiles.empty[s], Tiles::kWarps);
    }
    arch::mbarrier_init(&tiles.again, 1);
    arch::mbarrier_init_fence();
    for (int i = 0; i < min(kStages, order.turns()); ++i) load(order.tile(i), i, &tiles.full[i]);
  }
  const int queries[2] = {query_of(row_at(row_of(0))), query_of(row_at(row_of(1)))};
  uint32_t q[4 * kPanels][4];
  float unit[2], norm[2];
  load_queries<T>(p, head, queries, q, unit, norm);

  auto& lists = tiles.rows[warp].lists;
  if (lane % 4 == 0) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = queries[half], row = row_of(half);
      lists.query[row] = query;
      lists.count[row] = 0;
      lists.unit[row] = unit[half];
      lists.norm[row] = norm[half] < INFINITY ? norm[half] : 8.0f;
      lists.bound[row] = query < 0 ? kCrowded
                         : kLong   ? p.bounds[int64_t{head} * p.q_len + query] / unit[half]
                                   : -INFINITY;
    }
  }
  if (lane == 0) tiles.pace[warp] = {.interval = 1, .most = 0, .meet = order.samples + 2, .times = 0};
  LostTiles& lost = tiles.lost[warp];
  lost.words[lane] = 0;
  bool screened = true;  // whether the screen may deal with all keys
  for (int i = thread; i < (block_end + kErrorKeys - 1) / kErrorKeys; i += Tiles::kThreads)
    screened &= errors[i] < INFINITY;
  screened = __syncthreads_and(screened) != 0;
  if (lane % 4 == 0) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!screened || !(norm[half] < INFINITY)) close_row(lists, tiles.head, row_of(half), kBroad);
    }
  }
  __syncwarp();
  Screen<kKeys, typename Tiles::Rows> screen(tiles.rows[warp], tiles.head);

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
  // Calls look with what the rows see: elsewhere -inf. (Written to registers of their own: products into ones
  // that a branch may have changed would wait for one another.)
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
  const auto leave = [&](const Ring& at) {
    return lane == 0 && arch::mbarrier_arrive_last(&tiles.empty[at.stage]);
  };
  const auto refill = [&](auto sampling, bool last, int turn, const Ring& at) {
    const int next = turn + kStages;
    if (last && next < turns) {
      arch::mbarrier_wait(&tiles.empty[at.stage], at.parity);
      const int tile = decltype(sampling)::value ? order.tile(next) : order.screened(next);
      load(tile, at.stage, &tiles.full[at.stage]);
    }
  };
  Ring ring;
  int turn = 0;
  // One turn or two, the tiles from these keys on: while the tensor cores work on the second tile, the warps
  // look through the first. aim: called before that, with the error of both. look: calls what it is given
  // once it has looked through a tile's scores. Nothing is waited for before the products that could be
  // behind them, where it costs nothing: so the errors are read there, and the lane. sampling: whether this
  // is the pass over samples.
  const auto take_tiles = [&](auto sampling, bool two, int first_key, int second_key, const auto& aim,
                              const auto& look) {
    const Ring first = ring;
    ring.next();
    const Ring second = two ? ring : first;  // or multiplied for nothing
    if (two) ring.next();
    Scores x, y;
    const uint64_t first_tile = descriptor_of(tiles.keys[first.stage]);
    const uint64_t second_tile = descriptor_of(tiles.keys[second.stage]);
    arch::mbarrier_wait(&tiles.full[first.stage], first.parity);
    multiply(x, first_tile);
    arch::mbarrier_wait(&tiles.full[second.stage], second.parity);
    multiply(y, second_tile);
    const float* const errors = tiles.head.errors;
    aim(fmaxf(errors[first_key / kErrorKeys], errors[max(second_key, 0) / kErrorKeys]));
    const int lane_anew = arch::lane_id();
    arch::wgmma_wait<1>();
    arch::wgmma_hold(x);
    const bool last = leave(first);
    show(x, first_key, [&](const Scores& acc) {
      look(acc, first_key, lane_anew, [&] { refill(sampling, last, turn, first); });
    });
    arch::wgmma_wait<0>();
    arch::wgmma_hold(y);
    if (two) {
      const bool last = leave(second);
      show(y, second_key, [&](const Scores& acc) {
        look(acc, second_key, lane_anew, [&] { refill(sampling, last, turn + 1, second); });
      });
    }
    turn += two ? 2 : 1;
  };

  bool done = order.count == 0;
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
  if (!done) {
    Samples samples;
    const int decision = min(order.samples, max(512 / kKeys, order.count / 8 & ~1));
    bool dense_may_pay = false;
    bool repeated = false;  // one tile is sampled twice where there is but one; it must not count twice
    while (turn < order.samples && !done) {
      take_tiles(
          std::true_type{}, true, kKeys * order.sample(turn), kKeys * order.sample(turn + 1),
          [&](float error) { samples.error = fmaxf(samples.error, error); },
          [&](const Scores& acc, int, int, const auto& looked) {
            if (!repeated) samples.take(acc);
            repeated = order.count == 1;
            looked();
          });
      if (!kLong && turn == 2) {
        dense_may_pay = most_rows([&](int half) { return screen.spread(samples, half) < kCloseSpread; });
        if (dense_may_pay &&
            most_rows([&](int half) { return screen.spread(samples, half) < kBroadSpread; })) {
          leave_to_dense();
          continue;
        }
      }
      const bool decides = dense_may_pay && turn == decision;
      if (turn < order.samples && !decides) continue;
      screen.bound_from(samples);
      if (!decides) continue;
      const float broad = broad_samples(static_cast<float>(turn * kKeys));
      if (most_rows([&](int half) { return static_cast<float>(screen.above_bound(samples, half)) >= broad; }))
        leave_to_dense();
    }
  }
  const auto look = [&](const Scores& acc, int key, int lane_anew, const auto& looked) {
    const auto above = screen.find(acc);
    looked();
    if (screen.put_aside(acc, above, key, lane_anew)) [[likely]]
      return;
    const int index = order.count - 1 - key / kKeys;
    if (index >= LostTiles::kMost) {
      screen.close_all();
    } else if (lane == 0) {
      lost.words[index / 32] |= 1u << index % 32;
    }
  };
  Pace& pace = tiles.pace[warp];
  constexpr int kRoom = Tiles::Rows::Aside::kRoom;
  constexpr int kFewTiles =
      12;        // with so few, pairs lie so dense that two may hold more than there is room for
  int wait = 1;  // rounds until what was put aside is listed
  while (!done) {
    const int key = kKeys * order.screened(turn);
    take_tiles(
        std::false_type{}, order.count > kFewTiles && turn + 1 < turns, key, key - kKeys,
        [&](float error) { screen.aim(error); }, look);
    done = turn >= turns;
    if ((--wait > 0 && screen.waiting() < kRoom * 3 / 4) || done) [[likely]]
      continue;
    Pace next = pace;
    next.most = max(next.most, screen.waiting());
    const bool meet = wait <= 0 && turn >= next.meet;
    screen.list(meet && turn >= order.samples * 5 / 2);
    if (wait <= 0) wait = next.interval;
    if (meet) {
      int* const seen = tiles.seen[next.times++ % 2];
      if (lane == 0) seen[warp] = next.most;
      if (__syncthreads_and(screen.closed())) {
        stop();
        continue;
      }
      int most = 1;
      for (int w = 0; w < Tiles::kWarps; ++w) most = max(most, seen[w]);
      // So that the fullest warp's room is some four fifths full when it is listed.
      wait = next.interval = max(1, min(4 * next.interval, next.interval * (kRoom * 4 / 5) / most));
      next.meet += turn - order.samples;
      next.most = 0;
    }
    if (lane == 0) pace = next;
    __syncwarp();
  }
  if (!screen.closed()) screen.list(true);

  // Once more those tiles of which too much had to be put aside at once: by now the bounds are tight.
  const bool open = !screen.closed();
  if (__syncthreads_or(open && lost.words[lane] != 0)) [[unlikely]] {
    uint32_t parity = 0;
    for (int word = 0; word < min(LostTiles::kMost, order.count + 31) / 32; ++word) {
      unsigned of_any = 0;
      for (const LostTiles& of_warp : tiles.lost) of_any |= of_warp.words[word];
      for (; of_any != 0; of_any &= of_any - 1, parity ^= 1) {
        const int bit = __ffs(static_cast<int>(of_any)) - 1,
                  key = kKeys * (order.count - 1 - (32 * word + bit));
        if (thread == 0) load(key / kKeys, 0, &tiles.again);
        arch::mbarrier_wait(&tiles.again, parity);
        const bool mine = lost.words[word] >> bit & 1;
        if (mine) screen.forget(key, key + kKeys);
        Scores acc;
        multiply(acc, descriptor_of(tiles.keys[0]));
        arch::wgmma_wait<0>();
        arch::wgmma_hold(acc);
        if (mine) {
          show(acc, key,
               [&](const Scores& seen) { screen.look_again(seen, key + lane, errors[key / kErrorKeys]); });
          screen.list(true);
        }
        __syncthreads();
      }
    }
  }
  if (!screen.closed()) finish_rows<T, kPanels>(p, head, tiles.head, lists, tiles.scores[warp]);

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

}  // namespace splash::gpu::entmax
