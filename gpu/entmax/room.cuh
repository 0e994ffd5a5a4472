#pragma once
// Room in the columns of a warp's lists (row_lists.cuh), where it gets short while keys are screened.

#include "gpu/entmax/row_lists.cuh"
#include "gpu/entmax/vectors.cuh"

namespace splash::gpu::entmax {

// What the exact score is at least: the screen's is off by a margin, and by its last rounding.
__device__ __forceinline__ float at_least(float score, float margin) {
  return score - 0x1.02p-11f * fabsf(score) - margin;
}

// Keys of the tiles in the calling lane's column. False where there was too little room for all.
template <class Lists>
__device__ __forceinline__ bool list_keys_of_tiles(Lists& lists) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int keys = lists.keys[lane];
  bool fits = true;
  visit_tiles(lists, [&](int half, int key, int pair) {
    fits &= keys < 2 * pair + 2;  // no tile that has not been read
    if (fits) lists.slot(lane, keys++) = key_of_half(key, half);
  });
  lists.keys[lane] = keys;
  lists.tiles[lane] = Lists::kSlots / 2;
  return fits;
}

// Drops keys of a quad's two rows: their scores, exactly, raise the bounds, which rule some out. Where a lane
// has fewer than kFewSlots left even so, the row that takes more is closed. By the whole warp.
template <class T, int kFewSlots, class Lists>
__device__ __forceinline__ void drop_keys(const Problem& p, int head_index, const Head& head, Lists& lists,
                                          int quad) {
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
    bound[half] = lists.bound[quad + 8 * half];
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
  // At most what was lowered.
  const auto stays = [&](int one, float score) {
    const int half = half_of(one);
    return fmaf(0x1p-9f, fabsf(score), score) + 2.01f * margin[half] > bound[half];
  };
  counts[0] = counts[1] = 0;
  int of_column[4] = {};
  visit([&](int one, float score, int column) {
    if (!stays(one, score)) return;
    ++counts[half_of(one)];
    ++of_column[column];
  });
#pragma unroll
  for (int half = 0; half < 2; ++half) counts[half] = __reduce_add_sync(kWarp, counts[half]);
#pragma unroll
  for (const int count : of_column) full |= __reduce_add_sync(kWarp, count) > Lists::kSlots - kFewSlots;
  const int closed = !full ? -1 : counts[0] >= counts[1] ? 0 : 1;
  __syncwarp();
  if (lane < 2) {
    lists.bound[quad + 8 * lane] = lane == 0 ? bound[0] : bound[1];
    if (lane == closed) close_row(lists, head, quad + 8 * lane, kCrowded);
  }
#pragma unroll
  for (int column = 0; column < 4; ++column) {
    const int all = lists.keys[4 * quad + column];
    int kept = 0;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int one = listed[column][part];
      const bool keeps = lane + 32 * part < all && half_of(one) != closed && stays(one, scores[column][part]);
      const unsigned keepers = __ballot_sync(kWarp, keeps);
      if (keeps) lists.slot(4 * quad + column, kept + __popc(keepers & ((1u << lane) - 1))) = one;
      kept += __popc(keepers);
    }
    __syncwarp();
    if (lane == 0) lists.keys[4 * quad + column] = kept;
  }
  __syncwarp();
}

// Makes tiles keys, and where a lane has little room left even so, drops some, or closes rows: both of a lane
// that had too little room. Where half of the rows are crowded, so will be the others: all are closed. Hardly
// ever called.
template <class T, int kFewSlots, class Lists>
__device__ __noinline__ void make_room_in(const Problem& p, int head_index, const Head& head, Lists& lists) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool lost = quad_any(!list_keys_of_tiles(lists));
  if (lost) {
    lists.keys[lane] = 0;
    if (lane % 4 < 2) close_row(lists, head, row_of(lane % 4), kCrowded);
  }
  __syncwarp();
  for (unsigned full = __ballot_sync(kWarp, lists.keys[lane] > Lists::kSlots - kFewSlots); full != 0;) {
    const int quad = (__ffs(static_cast<int>(full)) - 1) / 4;
    full &= ~(0xFu << 4 * quad);
    drop_keys<T, kFewSlots>(p, head_index, head, lists, quad);
  }
  const bool is_row = lane < kWarpRows;
  const bool crowded = is_row && lists.query[lane] >= 0 && lists.bound[lane] == kCrowded;
  if (__popc(__ballot_sync(kWarp, crowded)) >= kWarpRows / 2) {
    if (is_row) close_row(lists, head, lane, kBroad);
    lists.keys[lane] = 0;
  }
  __syncwarp();
}

}  // namespace splash::gpu::entmax
