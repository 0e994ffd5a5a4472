#pragma once
// The few (score, key) pairs of a warp's 16 rows that may have p > 0, in shared memory, and Newton on them.
// Lane l of a warp works on a quarter of the rows l / 4 and l / 4 + 8, as in wgmma's accumulators.
//
// While keys are screened, scores are those of a float16 product with the query scaled by a power of two, in
// units of their own for each row, and lowered by the product's error: at most the true ones. So tau of a
// list bounds the true one from below. At the end they are computed again in float32, without a scale.

#include <cfloat>

#include <cuda_fp16.h>

#include "gpu/entmax/weights.cuh"

namespace splash::gpu::entmax {

constexpr int kWarpRows = 16;

// A row's bound is at most tau: what is not above it has p = 0. Rows that take no more pairs are marked by
// it:
inline constexpr float kBroad = FLT_MAX;  // left to the dense path: many rows beside it outgrew their lists
inline constexpr float kNothing = 1e30f;  // it sees no keys; more than float16 holds, so nothing exceeds it
inline constexpr float kCrowded = INFINITY;  // it outgrew its list; or is no row at all

__device__ __forceinline__ bool is_left(float bound) {  // to other kernels
  return bound >= kBroad;
}

// What a block's warps share of its head.
struct Head {
  Entmax entmax;
  float* bounds;  // [q_len]: where rows that are left leave their bounds, in units of <q, k>
};

// Rows r and r + 8 share room for kPlaces pairs: the first fills it from its start, the second from its end.
template <int kPlaces>
struct RowLists {
  static constexpr int kRoom = kPlaces;
  static_assert(kRoom % 8 == 4, "so that the lanes of a warp read from different banks");
  using ExactScores = float[kWarpRows / 2][kRoom];
  __half scores[kWarpRows / 2][kRoom];  // lowered, and in the row's units
  int keys[kWarpRows / 2][kRoom];
  float bound[kWarpRows];   // in the row's units
  float unit[kWarpRows];    // a power of two: <q, k> = unit * score
  float margin[kWarpRows];  // that the screen's scores are off by at most, beside their last rounding
  float pivot[kWarpRows];   // in the end <q, k> = score + pivot
  int count[kWarpRows];
  int query[kWarpRows];  // of its head; -1 where there is none
  int end[kWarpRows];    // it sees the keys below

  // Where the i-th pair of row r or r + 8 lies.
  static __device__ __forceinline__ int place(int half, int i) { return half == 0 ? i : kRoom - 1 - i; }
};

// Lane l's two rows are those of a quad: l / 4 and l / 4 + 8.
__device__ __forceinline__ int quad_of_lane() {
  return static_cast<int>(threadIdx.x) % 32 / 4;
}
__device__ __forceinline__ int row_of(int half) {
  return quad_of_lane() + 8 * half;
}

// tau of what the lists hold, from below: of the largest score alone where there is no bound yet, then Newton
// steps, until the bounds stand still. scores: the lists' own, or the exact ones. By the whole warp.
template <class Lists, class Score>
__device__ __forceinline__ void raise_bounds(Lists& lists, const Score (&scores)[kWarpRows / 2][Lists::kRoom],
                                             const Entmax& entmax, int steps) {
  const int first = static_cast<int>(threadIdx.x) % 4;
  float bound[2], gain[2];
  int count[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    bound[half] = lists.bound[row_of(half)];
    gain[half] = entmax.gain * lists.unit[row_of(half)];
    count[half] = lists.count[row_of(half)];
  }
  const auto score_of = [&](int half, int i) {
    return i < count[half] ? static_cast<float>(scores[quad_of_lane()][Lists::place(half, i)]) : -INFINITY;
  };
  const int most = max(count[0], count[1]);
  if (__any_sync(kWarp, fminf(bound[0], bound[1]) == -INFINITY)) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = -INFINITY;
      for (int i = first; i < most; i += 4) largest = fmaxf(largest, score_of(half, i));
      largest = quad_max(largest);
      if (count[half] > 0) bound[half] = fmaxf(bound[half], bound_of_largest(largest, gain[half]));
    }
  }
  entmax.visit([&](auto kind) {
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      float sum[2] = {}, slope[2] = {};
#pragma unroll 2
      for (int i = first; i < most; i += 4) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float u = gain[half] * (score_of(half, i) - bound[half]), of_u = entmax.slope(kind, u);
          sum[half] = fmaf(fmaxf(u, 0.0f), of_u, sum[half]);
          slope[half] += of_u;
        }
      }
      bool moved = false;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float before = bound[half];
        const float next =
            newton(entmax.beta * gain[half], before, quad_sum(sum[half]), quad_sum(slope[half]));
        if (count[half] > 0) bound[half] = next;
        moved |= bound[half] > before + 1e-7f * fabsf(before);
      }
      if (!__any_sync(kWarp, moved)) break;
    }
  });
  __syncwarp();  // all have read
  if (first == 0) {
    lists.bound[row_of(0)] = bound[0];
    lists.bound[row_of(1)] = bound[1];
  }
  __syncwarp();
}

// Drops the pairs for which keeps(row, score, key) is false; the others keep their order. scores: as for
// raise_bounds. By the whole warp.
template <class Lists, class Score, class Keeps>
__device__ __forceinline__ void drop_pairs(Lists& lists, Score (&scores)[kWarpRows / 2][Lists::kRoom],
                                           const Keeps& keeps) {
  const int lane = static_cast<int>(threadIdx.x) % 32, first = lane % 4;
  int count[2], kept[2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) count[half] = lists.count[row_of(half)];
  const int most = __reduce_max_sync(kWarp, max(count[0], count[1]));
#pragma unroll 1
  for (int i = first; i < most + first; i += 4) {
    Score score[2];
    int key[2];
    unsigned keep[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool there = i < count[half];
      const int at = Lists::place(half, there ? i : 0);
      score[half] = scores[quad_of_lane()][at];
      key[half] = lists.keys[quad_of_lane()][at];
      keep[half] = __ballot_sync(kWarp, there && keeps(half, static_cast<float>(score[half]), key[half])) >>
                       (lane & ~3) &
                   0xF;
    }
    __syncwarp();  // all have read
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (keep[half] >> first & 1) {
        const int to = Lists::place(half, kept[half] + __popc(keep[half] & ((1u << first) - 1)));
        scores[quad_of_lane()][to] = score[half];
        lists.keys[quad_of_lane()][to] = key[half];
      }
      kept[half] += __popc(keep[half]);
    }
    __syncwarp();
  }
  __syncwarp();
  if (first == 0) {
    lists.count[row_of(0)] = kept[0];
    lists.count[row_of(1)] = kept[1];
  }
  __syncwarp();
}

// Drops what the bounds rule out, and the pairs of the keys from first_key to below end_key.
template <class Lists>
__device__ __forceinline__ void drop_screened(Lists& lists, int first_key = 0, int end_key = 0) {
  float bound[2], margin[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    bound[half] = lists.bound[row_of(half)];
    margin[half] = 2.01f * lists.margin[row_of(half)];
  }
  drop_pairs(lists, lists.scores, [&](int half, float score, int key) {
    // At most what was lowered and rounded.
    return fmaf(0x1p-9f, fabsf(score), score) + margin[half] > bound[half] &&
           (key < first_key || key >= end_key);
  });
}

// The row is left to others, who may start from its bound. mark: kCrowded or kBroad.
template <class Lists>
__device__ __forceinline__ void close_row(Lists& lists, const Head& head, int row, float mark) {
  if (lists.query[row] < 0) return;
  if (!is_left(lists.bound[row])) {
    head.bounds[lists.query[row]] = lists.unit[row] * lists.bound[row];
    lists.count[row] = 0;
  }
  lists.bound[row] = mark;
}

}  // namespace splash::gpu::entmax
