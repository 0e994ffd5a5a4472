#pragma once
// The few (score, key) pairs of a row that may have p > 0, in lists of shared memory. A quad of lanes holds
// two rows (lane / 4 and lane / 4 + 8 of its warp's 16): each lane keeps what it saw itself, in lists of its
// own that no other lane writes. Scores are products <q, k>, without the scale; all are finite.

#include "gpu/entmax/weights.cuh"

namespace splash::gpu::entmax {

constexpr int kThreads = 256;

enum class RowStatus { open, poisoned, crowded };  // poisoned: NaN or +inf; crowded: the row path computes it

template <int kPairs>
struct Lists {
  static constexpr int kRoom = kPairs;
  float scores[2][kRoom + 1][kThreads];  // the last takes what there is no room for
  int keys[2][kRoom + 1][kThreads];
};

// The two rows of a quad; `count` is the lane's own, everything else the same in all four lanes.
struct Rows {
  float bound[2] = {-INFINITY, -INFINITY};  // at most tau: what is not above it has p = 0
  int count[2] = {0, 0};
  RowStatus status[2] = {RowStatus::open, RowStatus::open};

  // No pair is taken from here on.
  __device__ __forceinline__ void close(int half, RowStatus why) {
    status[half] = why;
    bound[half] = INFINITY;
    count[half] = 0;
  }
};

// Whether `mine` holds in some lane of the quad.
__device__ __forceinline__ bool quad_any(bool mine) {
  const unsigned lane = threadIdx.x % 32;
  return (__ballot_sync(kWarp, mine) >> (lane & ~3u) & 0xF) != 0;
}

// tau of what the lists hold, from below: of the largest score alone where there is no bound yet, then Newton
// steps, until the bounds stand still.
template <class Lists>
__device__ __forceinline__ void raise_bounds(const Lists& lists, const Entmax& entmax, int steps,
                                             Rows& rows) {
  const int most = max(rows.count[0], rows.count[1]);
  if (__any_sync(kWarp, fminf(rows.bound[0], rows.bound[1]) == -INFINITY)) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = -INFINITY;
      for (int i = 0; i < rows.count[half]; ++i) largest = fmaxf(largest, lists.scores[half][i][threadIdx.x]);
      largest = quad_max(largest);
      rows.bound[half] = fmaxf(rows.bound[half], bound_of_largest(largest, entmax));
    }
  }
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    float sum[2] = {}, slope[2] = {};
#pragma unroll 2
    for (int i = 0; i < most; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float score = i < rows.count[half] ? lists.scores[half][i][threadIdx.x] : -INFINITY;
        const float u = entmax.gain * (score - rows.bound[half]), of_u = entmax.slope(u);
        sum[half] = fmaf(fmaxf(u, 0.0f), of_u, sum[half]);
        slope[half] += of_u;
      }
    }
    bool moved = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float before = rows.bound[half];
      rows.bound[half] = newton(entmax, before, quad_sum(sum[half]), quad_sum(slope[half]));
      moved |= rows.bound[half] > before + 1e-7f * fabsf(before);
    }
    if (!__any_sync(kWarp, moved)) return;
  }
}

// Drops the pairs that the bounds rule out, and those of the keys from first_key to below end_key.
template <class Lists>
__device__ __forceinline__ void drop_pairs(Lists& lists, int first_key, int end_key, Rows& rows) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int kept = 0;
#pragma unroll 2
    for (int i = 0; i < rows.count[half]; ++i) {
      const float score = lists.scores[half][i][threadIdx.x];
      const int key = lists.keys[half][i][threadIdx.x];
      if (score <= rows.bound[half] || (key >= first_key && key < end_key)) continue;
      lists.scores[half][kept][threadIdx.x] = score;
      lists.keys[half][kept][threadIdx.x] = key;
      ++kept;
    }
    rows.count[half] = kept;
  }
}

// Where a lane's list is nearly full, its quad's pairs are spread evenly: one moves from the fullest lane to
// the emptiest, again and again.
template <class Lists>
__device__ __forceinline__ void balance(Lists& lists, Rows& rows) {
  const int lane = static_cast<int>(threadIdx.x) % 32, first = lane & ~3;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const bool nearly_full = quad_any(rows.count[half] > Lists::kRoom - 4);
    for (;;) {
      int from = 0, to = 0, most = -1, least = Lists::kRoom + 1;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int count = __shfl_sync(kWarp, rows.count[half], first + i);
        if (count > most) most = count, from = first + i;
        if (count < least) least = count, to = first + i;
      }
      const bool move = nearly_full && most > least + 1;
      if (!__any_sync(kWarp, move)) break;
      float score = 0;
      int key = 0;
      if (move && lane == from) {
        --rows.count[half];
        score = lists.scores[half][rows.count[half]][threadIdx.x];
        key = lists.keys[half][rows.count[half]][threadIdx.x];
      }
      score = __shfl_sync(kWarp, score, from);
      key = __shfl_sync(kWarp, key, from);
      if (move && lane == to) {
        lists.scores[half][rows.count[half]][threadIdx.x] = score;
        lists.keys[half][rows.count[half]][threadIdx.x] = key;
        ++rows.count[half];
      }
    }
  }
}

}  // namespace splash::gpu::entmax
