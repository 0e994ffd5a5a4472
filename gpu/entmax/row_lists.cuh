#pragma once
// The few (score, key) pairs of a warp's 16 rows that may have p > 0, in shared memory, and Newton on them.
// Lane l of a warp works on a quarter of the rows l / 4 and l / 4 + 8, as in wgmma's accumulators. Scores are
// products <q, k>, without the scale; all that are listed are finite.

#include <cfloat>

#include "gpu/entmax/weights.cuh"

namespace splash::gpu::entmax {

constexpr int kWarpRows = 16;

// A row's bound is at most tau: what is not above it has p = 0. Rows that take no more pairs are marked by
// it:
inline constexpr float kBroad = FLT_MAX;  // left to the dense path: many rows beside it outgrew their lists
inline constexpr float kCrowded = INFINITY;    // it outgrew its list; or is no row at all
__device__ __forceinline__ float poisoned() {  // NaN or +inf among its scores; no integer exceeds these bits
  return __int_as_float(0x7FFFFFFF);
}

__device__ __forceinline__ bool is_left(float bound) {  // to other kernels
  return bound == kBroad || bound == kCrowded;
}

template <int kPairs>
struct RowLists {
  static constexpr int kRoom = kPairs;
  static_assert(kRoom % 8 == 4, "so that the lanes of a warp read from different banks");
  float scores[kWarpRows][kRoom];
  int keys[kWarpRows][kRoom];
  float bound[kWarpRows];
  int count[kWarpRows];
  int query[kWarpRows];  // of its head; -1 where there is none
};

// The row of half 0 or 1 of this lane's quad.
__device__ __forceinline__ int row_of(int half) {
  return static_cast<int>(threadIdx.x) % 32 / 4 + 8 * half;
}

// tau of what the lists hold, from below: of the largest score alone where there is no bound yet, then Newton
// steps, until the bounds stand still. By the whole warp.
template <class Lists>
__device__ __forceinline__ void raise_bounds(Lists& lists, const Entmax& entmax, int steps) {
  const int first = static_cast<int>(threadIdx.x) % 4;
  float bound[2];
  int count[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    bound[half] = lists.bound[row_of(half)];
    count[half] = lists.count[row_of(half)];
  }
  if (__any_sync(kWarp, fminf(bound[0], bound[1]) == -INFINITY)) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = -INFINITY;
      for (int i = first; i < count[half]; i += 4) largest = fmaxf(largest, lists.scores[row_of(half)][i]);
      largest = quad_max(largest);
      if (count[half] > 0) bound[half] = fmaxf(bound[half], bound_of_largest(largest, entmax));
    }
  }
  const int most = max(count[0], count[1]);
  entmax.visit([&](auto kind) {
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      float sum[2] = {}, slope[2] = {};
#pragma unroll 2
      for (int i = first; i < most; i += 4) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float score = i < count[half] ? lists.scores[row_of(half)][i] : -INFINITY;
          const float u = entmax.gain * (score - bound[half]), of_u = entmax.slope(kind, u);
          sum[half] = fmaf(fmaxf(u, 0.0f), of_u, sum[half]);
          slope[half] += of_u;
        }
      }
      bool moved = false;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float before = bound[half];
        const float next = newton(entmax, before, quad_sum(sum[half]), quad_sum(slope[half]));
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

// Drops the pairs that the bounds rule out, and those of the keys from first_key to below end_key; the others
// keep their order. By the whole warp.
template <class Lists>
__device__ __forceinline__ void drop_pairs(Lists& lists, int first_key = 0, int end_key = 0) {
  const int lane = static_cast<int>(threadIdx.x) % 32, first = lane % 4;
  int count[2], kept[2] = {};
  float bound[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    count[half] = lists.count[row_of(half)];
    bound[half] = lists.bound[row_of(half)];
  }
  const int most = __reduce_max_sync(kWarp, max(count[0], count[1]));
#pragma unroll 1
  for (int i = first; i < most + first; i += 4) {
    float score[2];
    int key[2];
    unsigned keep[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool there = i < count[half];
      score[half] = there ? lists.scores[row_of(half)][i] : -INFINITY;
      key[half] = there ? lists.keys[row_of(half)][i] : 0;
      const bool outside = key[half] < first_key || key[half] >= end_key;
      keep[half] = __ballot_sync(kWarp, score[half] > bound[half] && outside) >> (lane & ~3) & 0xF;
    }
    __syncwarp();  // all have read
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (keep[half] >> first & 1) {
        const int to = kept[half] + __popc(keep[half] & ((1u << first) - 1));
        lists.scores[row_of(half)][to] = score[half];
        lists.keys[row_of(half)][to] = key[half];
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

}  // namespace splash::gpu::entmax
