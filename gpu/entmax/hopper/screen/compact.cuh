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

// Makes keys of the tiles in the calling lane's column. False where they did not all fit.
template <class Lists>
__device__ __forceinline__ bool expand_tiles(Lists& lists) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int keys = lists.keys[lane];
  bool fits = true;
  visit_tiles(lists, [&](int half, int key, int pair) {
    fits &= keys < 2 * pair + 2;  // overwrites no tile that has not been read
    if (fits) lists.slot(lane, keys++) = key_of_half(key, half);
  });
  lists.keys[lane] = keys;
  lists.tiles[lane] = Lists::kSlots / 2;
  return fits;
}

// Drops keys of a quad's two rows: their exact scores raise the rows' bounds, which rule some out. Where a
// lane still has fewer than kFreeSlots free, the row with more keys is deferred.
template <class T, int kFreeSlots, class Lists>
__device__ __forceinline__ void prune_keys(const ForwardProblem& p, int head_index, const Head& head,
                                           Lists& lists, int quad) {
  constexpr int kParts = (Lists::kSlots + 31) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto* const keys = static_cast<const T*>(p.k) + int64_t{head_index / p.group} * p.kv_len * p.head_dim;
  const auto* const queries = static_cast<const T*>(p.q) + int64_t{head_index} * p.q_len * p.head_dim;
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
    const int row = quad + 8 * half_of(one);
    float product = 0;
#pragma unroll 8
    for (int column = 0; column < p.head_dim; column += 8)
      product += dot8<T>(load8(queries + int64_t{lists.query[row]} * p.head_dim + column),
                         load8(keys + int64_t{key_of(one)} * p.head_dim + column));
    score = at_least(product / lists.unit[row], lists.margin[row]);
    largest[half_of(one)] = fmaxf(largest[half_of(one)], score);
  });
  const float margin[2] = {lists.margin[quad], lists.margin[quad + 8]};
  float bound[2];
  int counts[2];
  bool full = false;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float gain = head.entmax.gain * lists.unit[quad + 8 * half], most = arch::warp_max(largest[half]);
    bound[half] = lists.bound[quad + 8 * half].value;
    if (most > -INFINITY) bound[half] = fmaxf(bound[half], bound_of_largest(most, gain));
#pragma unroll 1
    for (int step = 0; step < 6; ++step) {
      float sum = 0, slope = 0;
      visit([&](int one, float score, int) {
        const float u = half_of(one) == half ? gain * (score - bound[half]) : 0;
        sum += head.entmax.weight(u);
        slope += head.entmax.slope(u);
      });
      bound[half] = newton(head.entmax.beta * gain, bound[half], arch::warp_sum(sum), arch::warp_sum(slope));
    }
  }
  // at_least lowered the score by no more than this adds.
  const auto stays = [&](int one, float score) {
    const int half = half_of(one);
    return fmaf(0x1p-9f, fabsf(score), score) + 2.01f * margin[half] > bound[half];
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

// Expands tiles, then prunes keys of lanes that still have fewer than kFreeSlots free. Both rows of a lane
// whose tiles did not fit are deferred. Where half of the warp's rows have overflowed, the others would
// follow: all are deferred as broad. Rarely called, so not inlined.
template <class T, int kFreeSlots, class Lists>
__device__ __noinline__ void compact_lists(const ForwardProblem& p, int head_index, const Head& head,
                                           Lists& lists) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool lost = quad_any(!expand_tiles(lists));
  if (lost) {
    lists.keys[lane] = 0;
    if (lane % 4 < 2) defer_row(lists, head, row_of(lane % 4), RowState::overflowed);
  }
  __syncwarp();
  for (unsigned full = __ballot_sync(kWarp, lists.keys[lane] > Lists::kSlots - kFreeSlots); full != 0;) {
    const int quad = (__ffs(static_cast<int>(full)) - 1) / 4;
    full &= ~(0xFu << 4 * quad);
    prune_keys<T, kFreeSlots>(p, head_index, head, lists, quad);
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
