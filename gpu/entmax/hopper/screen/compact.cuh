#pragma once
// Compaction of a warp's lists (warp_lists.cuh) where a column is nearly full: tiles become keys, keys that a
// better bound rules out are dropped, and rows that still have too many are deferred. Called by whole warps.

#include "gpu/entmax/hopper/screen/warp_lists.cuh"
#include "gpu/entmax/math/vectors.cuh"

namespace splash::gpu::entmax::hopper {

// A lower bound of the exact score: the screen's is off by a margin, and by its last rounding.
__device__ __forceinline__ float at_least(float score, float margin) {
  return score - 0x1.02p-11f * fabsf(score) - margin;
}

// The bits of a hit mask that belong to rows which still take keys, of the calling lane's two.
template <class Lists>
__device__ __forceinline__ uint32_t bits_of_open_rows(const Lists& lists) {
  return (lists.bound[row_of(0)].is_deferred() ? 0 : kFirstRow) |
         (lists.bound[row_of(1)].is_deferred() ? 0 : ~kFirstRow);
}

// Makes keys of the tiles in the calling lane's column, the last ones first. False where the next one's keys
// have no room: they may take the tile's own two slots, and those between keys and tiles.
template <class Lists>
__device__ __forceinline__ bool expand_tiles(Lists& lists) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t open = bits_of_open_rows(lists);
  int keys = lists.keys[lane];
  const int pair = visit_tiles(
      lists,
      [&](uint32_t& hits, int at) {
        hits &= open;
        return keys + __popc(hits) <= 2 * at + 2;
      },
      [&](int half, int key) { lists.slot(lane, keys++) = key_of_half(key, half); });
  lists.keys[lane] = keys;
  lists.tiles[lane] = pair;
  return pair == Lists::kSlots / 2;
}

// At most the row's exact score of a key, in the row's units.
template <class T, class Lists>
__device__ __forceinline__ float least_score(const ForwardProblem& p, int head_index, const Lists& lists,
                                             int row, int key) {
  const auto* const keys = static_cast<const T*>(p.k) + int64_t{head_index / p.group} * p.kv_len * p.head_dim;
  const auto* const queries = static_cast<const T*>(p.q) + int64_t{head_index} * p.q_len * p.head_dim;
  float product = 0;
#pragma unroll 8
  for (int column = 0; column < p.head_dim; column += 8)
    product += dot8<T>(load8(queries + int64_t{lists.query[row]} * p.head_dim + column),
                       load8(keys + int64_t{key} * p.head_dim + column));
  return at_least(product / lists.unit[row], lists.margin[row]);
}
// Whether a key may have p > 0: least_score lowered its score by no more than this adds.
__device__ __forceinline__ bool may_exceed(float least_score, float margin, float bound) {
  return fmaf(0x1p-9f, fabsf(least_score), least_score) + 2.01f * margin > bound;
}

// Makes room for the next tile of another lane's column, whose keys did not fit: clears those that exact
// scores rule out. Where the others do not fit, the column's two rows are deferred.
template <class T, class Lists>
__device__ __forceinline__ void fit_tile(const ForwardProblem& p, int head_index, const Head& head,
                                         Lists& lists, int column) {
  const int lane = static_cast<int>(threadIdx.x) % 32, quad = column / 4, pair = lists.tiles[column];
  int(&tile)[2] = lists.columns[pair][column];
  const int row = quad + 8 * half_of_bit(lane);
  const bool hits = (static_cast<uint32_t>(tile[0]) >> lane & 1) != 0 && !lists.bound[row].is_deferred();
  const bool stays =
      hits && may_exceed(least_score<T>(p, head_index, lists, row, key_of_bit(lane, tile[1], column)),
                         lists.margin[row], lists.bound[row].value);
  const unsigned kept = __ballot_sync(kWarp, stays);
  const bool fits = lists.keys[column] + __popc(kept) <= 2 * pair + 2;
  __syncwarp();  // all have read
  if (lane == 0) tile[0] = static_cast<int>(kept);
  if (!fits) {
    if (lane < 4) lists.keys[4 * quad + lane] = 0;
    if (lane < 2) defer_row(lists, head, quad + 8 * lane, RowState::overflowed);
  }
  __syncwarp();
}

// Drops keys of a quad's two rows: their exact scores raise the rows' bounds, which rule some out. Where a
// lane still has fewer than kFreeSlots free, the row with more keys is deferred.
template <class T, int kFreeSlots, class Lists>
__device__ __forceinline__ void prune_keys(const ForwardProblem& p, int head_index, const Head& head,
                                           Lists& lists, int quad) {
  constexpr int kParts = (Lists::kSlots + 31) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int listed[4][kParts];
  float scores[4][kParts];  // at most the true ones, in the rows' units
  float largest[2] = {-INFINITY, -INFINITY};
  const auto visit = [&](const auto& look) {  // look(listed, score, column) of what is listed
#pragma unroll
    for (int column = 0; column < 4; ++column) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        if (lane + 32 * part < lists.keys[4 * quad + column])
          look(listed[column][part], scores[column][part], column);
      }
    }
  };
#pragma unroll
  for (int column = 0; column < 4; ++column) {
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      listed[column][part] = lists.slot(4 * quad + column, min(lane + 32 * part, Lists::kSlots - 1));
  }
  visit([&](int one, float& score, int) {
    score = least_score<T>(p, head_index, lists, quad + 8 * half_of(one), key_of(one));
    largest[half_of(one)] = fmaxf(largest[half_of(one)], score);
  });
  const float margin[2] = {lists.margin[quad], lists.margin[quad + 8]};
  float bound[2], gain[2];
  int counts[2];
  bool full = false;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    gain[half] = head.entmax.gain * lists.unit[quad + 8 * half];
    const float most = arch::warp_max(largest[half]);
    bound[half] = lists.bound[quad + 8 * half].value;
    if (most > -INFINITY) bound[half] = fmaxf(bound[half], bound_of_largest(most, gain[half]));
  }
#pragma unroll 1
  for (int step = 0; step < 4; ++step) {
    float sum[2] = {}, slope[2] = {};
    visit([&](int one, float score, int) {
      const int half = half_of(one);
      const float u = half == 0 ? gain[0] * (score - bound[0]) : gain[1] * (score - bound[1]);
      const float weight = head.entmax.weight(u), u_slope = head.entmax.slope(u);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        sum[i] += half == i ? weight : 0;
        slope[i] += half == i ? u_slope : 0;
      }
    });
#pragma unroll
    for (int half = 0; half < 2; ++half)
      bound[half] = newton(head.entmax.beta * gain[half], bound[half], arch::warp_sum(sum[half]),
                           arch::warp_sum(slope[half]));
  }
  const auto stays = [&](int one, float score) {
    return may_exceed(score, margin[half_of(one)], bound[half_of(one)]);
  };
  counts[0] = counts[1] = 0;
  int column_keys[4] = {};
  visit([&](int one, float score, int column) {
    if (!stays(one, score)) return;
    ++counts[half_of(one)];
    ++column_keys[column];
  });
#pragma unroll
  for (int half = 0; half < 2; ++half) counts[half] = __reduce_add_sync(kWarp, counts[half]);
#pragma unroll
  for (const int count : column_keys) full |= __reduce_add_sync(kWarp, count) > Lists::kSlots - kFreeSlots;
  const int deferred = !full ? -1 : counts[0] >= counts[1] ? 0 : 1;
  __syncwarp();  // all have read slots, counts and bounds
  if (lane < 2) {
    lists.bound[quad + 8 * lane].value = lane == 0 ? bound[0] : bound[1];
    if (lane == deferred) defer_row(lists, head, quad + 8 * lane, RowState::overflowed);
  }
#pragma unroll
  for (int column = 0; column < 4; ++column) {
    const int all = lists.keys[4 * quad + column];
    int kept = 0;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int one = listed[column][part];
      const bool keeps =
          lane + 32 * part < all && half_of(one) != deferred && stays(one, scores[column][part]);
      const unsigned keepers = __ballot_sync(kWarp, keeps);
      if (keeps) lists.slot(4 * quad + column, kept + __popc(keepers & ((1u << lane) - 1))) = one;
      kept += __popc(keepers);
    }
    __syncwarp();  // all have read the old count
    if (lane == 0) lists.keys[4 * quad + column] = kept;
  }
  __syncwarp();
}

// Expands tiles, and prunes keys of quads that have no room for their next tile or, in the end, fewer than
// kFreeSlots free. Where half of the warp's rows have overflowed, the others would follow: all are deferred
// as broad. Rarely called, so not inlined.
template <class T, int kFreeSlots, class Lists>
__device__ __noinline__ void compact_lists(const ForwardProblem& p, int head_index, const Head& head,
                                           Lists& lists) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (unsigned lacking = ~0u; lacking != 0;) {
    const bool lacks = !expand_tiles(lists);
    __syncwarp();
    lacking = __ballot_sync(kWarp, lacks);
    const bool is_full = lacks || lists.keys[lane] > Lists::kSlots - kFreeSlots;
    for (unsigned full = __ballot_sync(kWarp, is_full); full != 0;) {
      const int quad = (__ffs(static_cast<int>(full)) - 1) / 4;
      full &= ~(0xFu << 4 * quad);
      prune_keys<T, kFreeSlots>(p, head_index, head, lists, quad);
    }
    for (unsigned rest = lacking; rest != 0; rest &= rest - 1) {
      fit_tile<T>(p, head_index, head, lists, __ffs(static_cast<int>(rest)) - 1);
    }
  }
  const bool is_row = lane < kWarpRows;
  const bool overflowed = is_row && lists.query[lane] >= 0 && lists.bound[lane].is(RowState::overflowed);
  if (__popc(__ballot_sync(kWarp, overflowed)) >= kWarpRows / 2) {
    if (is_row) defer_row(lists, head, lane, RowState::broad);
    lists.keys[lane] = 0;
  }
  __syncwarp();
}

}  // namespace splash::gpu::entmax::hopper
