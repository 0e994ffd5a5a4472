#pragma once
// One pass over the keys, the last first, lists the pairs that may have p > 0. Then tau, support and output
// come from the lists. Rows whose lists overflowed are marked for stream_kernel.

#include "gpu/entmax/math/threshold_root.h"
#include "gpu/entmax/portable/lists.cuh"
#include "gpu/entmax/portable/vector.cuh"
#include "gpu/entmax/schedule/block_place.h"
#include "gpu/entmax/support/allocate.cuh"

namespace splash::gpu::entmax::portable {

// What the lanes that sum up a row's values need to know of it.
struct FinishedRow {
  int query;  // -1: nothing is written
  int count;  // -1: NaN is written
};

// Lists are as long as shared memory allows with two blocks per SM of 164 KB, or one per SM of 100 KB.
template <class T, int kDim>
struct ScreenShared {
  using Tiles = portable::Tiles<T, kDim>;
  static constexpr int kCapacity = Tiles::kRowBytes == 128   ? 100
                                   : Tiles::kRowBytes == 256 ? (Tiles::kInRegisters ? 92 : 52)
                                   : Tiles::kRowBytes == 512 ? 60
                                                             : 108;
  using WarpStorage = PairStorage<kCapacity>;
  struct Apart {
    typename Tiles::Queries queries;
    WarpStorage lists[Tiles::kWarps];
  };
  union Shared {  // queries move to registers before the lists are written
    typename Tiles::Queries queries;
    WarpStorage lists[Tiles::kWarps];
  };
  typename Tiles::Stage stages[2];
  std::conditional_t<Tiles::kInRegisters, Shared, Apart> rows;
  FinishedRow finished[Tiles::kWarps][kWarpRows];
  KeyRange block;
};

// Solves for tau of the lists, where it is not given. Turns their scores into u = z - tau and keeps the pairs
// with u > 0.
template <int kCapacity>
__device__ __forceinline__ void solve_lists(PairLists<kCapacity>& lists, const Entmax& entmax) {
  constexpr int kMostSteps = 48;
  ThresholdRoot root[2];
  bool settled[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const RowState& state = lists.rows[half];
    root[half].cap(0);
    // The k_keep largest pairs may have a lower tau than all keys have, so a larger shift than the bound's.
    root[half].shift = lists.selects() && !lists.given() ? 1 : state.bound.shift;
    settled[half] = lists.given() || !state.open || state.count == 0;
  }
#pragma unroll 1
  for (int step = 0; step < kMostSteps; ++step) {
    if (__all_sync(kWarp, settled[0] && settled[1])) break;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float largest = lists.rows[half].bound.largest, shift = root[half].shift;
      float sum = 0, slope = 0;
      const auto add = [&](float score) {
        const float u = fmaf(entmax.gain, score - largest, shift), u_slope = entmax.slope(u);
        sum = fmaf(fmaxf(u, 0.0f), u_slope, sum);
        slope += u_slope;
      };
      lists.for_each_pair(half, [&](int, float score, int) { add(score); });
      add(lists.sink_to_add());
      sum = quad_sum(sum);
      slope = quad_sum(slope);
      if (!settled[half])
        settled[half] = root[half].advance(sum, entmax.beta * slope, entmax.beta) == Progress::settled;
    }
  }
  uint32_t keep[2] = {0, 0};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    RowState& state = lists.rows[half];
    state.bound.shift = root[half].shift;
    lists.for_each_pair(half, [&](int n, float& score, int) {
      score = fmaf(entmax.gain, score - state.bound.largest, root[half].shift);
      if (score > 0) keep[half] |= 1u << n;
    });
  }
  __syncwarp();  // all have written
  lists.compact(keep);
}

// Stores support and tau, and turns the lists' u into probabilities, after dropout. query: the lane's rows;
// -1 where another kernel computes the row or there is none.
template <int kCapacity>
__device__ __forceinline__ void store_lists(const PortableProblem& p, int head, const int (&query)[2],
                                            const Entmax& entmax, PairLists<kCapacity>& lists) {
  int64_t at[2] = {-1, -1};
  if (p.support.columns != nullptr) {
    int counts[2];  // the lane's own
#pragma unroll
    for (int half = 0; half < 2; ++half)
      counts[half] = max(lists.rows[half].count - lists.first() + 3, 0) / 4;
    place_support(p, head, query, counts, at);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const RowState& state = lists.rows[half];
    const Bound& bound = state.bound;
    float sum = entmax.weight(fmaf(entmax.gain, lists.sink_to_add() - bound.largest, bound.shift));
    lists.for_each_pair(half, [&](int n, float& u, int key) {
      if (at[half] >= 0) {
        p.support.columns[at[half] + n] = key;
        p.support.excess[at[half] + n] = u;
      }
      u = entmax.weight(u);
      sum += u;
    });
    const float inverse = 1 / quad_sum(sum);
    const DropoutFactors dropout(p.dropout, int64_t{head} * p.q_len + query[half]);
    lists.for_each_pair(half, [&](int, float& weight, int key) { weight *= inverse * dropout.of(key); });
    if (lists.first() != 0 || query[half] < 0 || p.tau == nullptr) continue;
    p.tau[int64_t{head} * p.q_len + query[half]] = state.poisoned ? NAN
                                                   : state.count == 0 && !lists.has_sink()
                                                       ? INFINITY
                                                       : fmaf(entmax.gain, bound.largest, -bound.shift);
  }
}

// Computes the output: sums the rows' values, 8 elements per lane, as many rows at once as a warp's lanes
// hold. Reads no value outside the support.
template <class T, int kDim, int kCapacity>
__device__ __forceinline__ void gather_lists(const PortableProblem& p, int head,
                                             const PairStorage<kCapacity>& lists,
                                             const FinishedRow (&finished)[kWarpRows]) {
  using Eight = Vector<T, 8>;
  constexpr int kLanes = kDim / 8, kAtOnce = 32 / kLanes, kFlight = 4;
  static_assert(kLanes * kAtOnce == 32);
  const int lane = static_cast<int>(threadIdx.x) % 32, column = lane % kLanes * 8;
  if (column >= p.head_dim) return;  // lanes may exit: no warp-wide operation follows
  const T* const values =
      static_cast<const T*>(p.v) + int64_t{head / p.group} * p.kv_len * p.head_dim + column;
  T* const out = static_cast<T*>(p.out) + int64_t{head} * p.q_len * p.head_dim + column;
#pragma unroll 1
  for (int row = lane / kLanes; row < kWarpRows; row += kAtOnce) {
    const auto [query, count] = finished[row];
    if (query < 0) continue;
    const float none = count < 0 ? NAN : 0.0f;
    float sums[8] = {none, none, none, none, none, none, none, none};
#pragma unroll 1
    for (int i = 0; i < count; i += kFlight) {
      Eight values_of_pair[kFlight];
#pragma unroll
      for (int j = 0; j < kFlight; ++j) {  // past the last pair: the last one's, with p = 0
        const int key = lists.keys[row][min(i + j, count - 1)];
        values_of_pair[j] = Eight::load(values + int64_t{key} * p.head_dim);
      }
#pragma unroll
      for (int j = 0; j < kFlight; ++j) {
        const float p_of_pair = i + j < count ? lists.scores[row][i + j] : 0;
        if (p_of_pair > 0) values_of_pair[j].add_to(sums, p_of_pair);  // a value without weight may be NaN
      }
    }
    Eight::store(out + int64_t{query} * p.head_dim, sums);
  }
}

template <class T, int kDim>
__global__ void __launch_bounds__(Tiles<T, kDim>::kThreads, 2)
    screen_kernel(const __grid_constant__ PortableProblem p) {
  using Shared = ScreenShared<T, kDim>;
  using Tiles = portable::Tiles<T, kDim>;
  constexpr int kCapacity = Shared::kCapacity;
  extern __shared__ __align__(16) unsigned char dynamic[];
  Shared& shared = *reinterpret_cast<Shared*>(dynamic);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const BlockPlace place(static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x) / p.heads, p.heads,
                         p.heads_together);
  const int head = place.head, tile = place.tile;
  const int first_row = tile * Tiles::kQueries, warp_row = first_row + warp * kWarpRows;
  const bool lists_rows = p.rows.queries != nullptr;
  const int present = lists_rows ? p.rows.counts[head] : p.q_len;
  if (first_row >= present) return;
  const auto query_of = [&](int row) {  // of the block
    const int at = first_row + row;
    return at >= present ? -1 : lists_rows ? p.rows.queries[int64_t{head} * p.q_len + at] : at;
  };
  int query[2] = {query_of(warp * kWarpRows + lane / 4), query_of(warp * kWarpRows + lane / 4 + 8)};
  Products<T, kDim, Tiles::kInRegisters> products(p, shared.stages, shared.rows.queries, shared.block, head,
                                                  query, query_of);
  const Entmax entmax = entmax_of(p, head);
  auto& storage = shared.rows.lists[warp];
  PairLists<kCapacity> lists(storage, p, entmax, head, query, products.rows());
  products.template for_each_tile<true>([&](const Scores& acc, int first_key) { lists.look(acc, first_key); },
                                        [&] { return lists.any_open(); });

  lists.pick_largest();
  solve_lists(lists, entmax);
  const int64_t first_word = int64_t{head} * row_mask_words(p.q_len);
  // Bit r: whether row r of the warp's 16 overflowed. Another warp writes the other half of the 32-bit word.
  uint32_t overflowed = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const bool leaves = lists.rows[half].overflowed && lists.first() == 0;
    const unsigned votes = __ballot_sync(kWarp, leaves);
#pragma unroll
    for (int quad = 0; quad < 8; ++quad) overflowed |= (votes >> (4 * quad) & 1) << (quad + 8 * half);
    if (leaves && lists_rows)
      atomicOr(p.broad_masks + first_word + query[half] / 32, 1u << (query[half] % 32));
    if (lists.rows[half].overflowed) query[half] = -1;
  }
  if (lane == 0 && warp_row < p.q_len && !lists_rows) {
    const int64_t half_word = (first_word * 32 + warp_row) / 16;
    reinterpret_cast<uint16_t*>(p.broad_masks)[half_word] = static_cast<uint16_t>(overflowed);
  }
  store_lists(p, head, query, entmax, lists);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const RowState& state = lists.rows[half];
    if (lists.first() == 0)
      shared.finished[warp][lists.row(half)] = {query[half], state.poisoned ? -1 : state.count};
  }
  __syncwarp();
  gather_lists<T, kDim>(p, head, storage, shared.finished[warp]);
}

}  // namespace splash::gpu::entmax::portable
