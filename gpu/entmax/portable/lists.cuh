#pragma once
// The (score, key) pairs of a warp's 16 rows that may have p > 0, in shared memory, and the bounds that
// decide which. All lanes of a warp call the functions here together. A quad (four lanes) holds two rows, and
// each of its lanes holds the same RowState of both.
//
// The invariant after each tile: every key seen so far that a row's list does not hold has a score below the
// row's threshold, so p = 0; or the row is deferred to stream_kernel. A full list causes no wait and no
// second look: each tile is taken in at most once, with at most one tightening of the bounds.

#include "gpu/arch/maximum.cuh"
#include "gpu/entmax/portable/bound.h"
#include "gpu/entmax/portable/tiles.cuh"

namespace splash::gpu::entmax::portable {

using arch::larger_or_nan;

__device__ __forceinline__ float quad_larger_or_nan(float x) {
  x = larger_or_nan(x, __shfl_xor_sync(kWarp, x, 1));
  return larger_or_nan(x, __shfl_xor_sync(kWarp, x, 2));
}
// Of the lane's scores of a row.
__device__ __forceinline__ float largest_or_nan(const Scores& acc, int half) {
  float largest = -INFINITY;
  for_each_score(acc, half, [&](float score, int) { largest = larger_or_nan(largest, score); });
  return largest;
}

template <int kPairs>
struct PairStorage {
  static constexpr int kCapacity = kPairs;
  static_assert(kCapacity % 8 == 4, "so that the lanes of a warp read from different banks");
  static_assert(kCapacity <= 4 * 32 && kCapacity >= 20, "a bit of a word for each of a lane's pairs");
  float scores[kWarpRows][kCapacity];
  int keys[kWarpRows][kCapacity];
};

// A head's k_keep; 0: all keys.
__device__ __forceinline__ int k_keep_of(const PortableProblem& p, int head) {
  return p.head_k_keep == nullptr ? p.k_keep : max(0, p.head_k_keep[head % p.q_heads]);
}

// The head's sink in units of <q, k>, as a score; -inf where there is none.
__device__ __forceinline__ float sink_of(const PortableProblem& p, int head) {
  return p.sinks == nullptr ? -INFINITY : p.sinks[head % p.q_heads] / p.scale;
}

// Where thresholds are given: m - tau of the query's row, NaN where the offset is NaN; 1 where there is no
// query.
__device__ __forceinline__ float given_shift(const PortableProblem& p, const Entmax& entmax, int head,
                                             int query) {
  return query < 0 ? 1.0f
                   : shift_of_offset(p.tau_offsets[int64_t{head} * p.q_len + query], entmax.beta, p.kv_len);
}

// open: the row's list takes pairs. A row is closed where it sees no key, where it is poisoned (it has a
// score or a sink of NaN or +inf, or any score while its given offset is NaN), or where its list overflowed.
// A sink counts in the bound and in sums, but is in no list.
struct RowState {
  Bound bound;
  int count = 0;            // pairs in the list
  int limit = 16;           // a tile that would bring more pairs raises the bound first
  float poison = INFINITY;  // a score that is not below it poisons the row
  bool open = false, poisoned = false, overflowed = false;

  __device__ __forceinline__ void close() {
    open = false;
    count = 0;
    bound.threshold = INFINITY;
  }
};

template <int kCapacity>
class PairLists {
 public:
  RowState rows[2];

  __device__ __forceinline__ PairLists(PairStorage<kCapacity>& lists, const PortableProblem& p,
                                       const Entmax& entmax, int head, const int (&query)[2],
                                       const VisibleRows& visible)
      : lists_(lists),
        entmax_(entmax),
        k_keep_(k_keep_of(p, head)),
        sink_(sink_of(p, head)),
        given_(p.tau_offsets != nullptr),
        lane_(static_cast<int>(threadIdx.x) % 32) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      rows[half].open = visible.sees(half);
      if (given_) {
        rows[half].bound.shift = given_shift(p, entmax, head, query[half]);
        if (!(rows[half].bound.shift > 0)) rows[half].poison = -FLT_MAX;  // NaN; a score of -inf is no key
      }
      if (sink_ > -INFINITY) rows[half].bound.see(sink_, entmax.gain);
      if (!(sink_ < INFINITY)) rows[half].poisoned = true;
      if (!rows[half].open || rows[half].poisoned) rows[half].close();
    }
  }

  // The sink where the lane is the one of its quad that adds it to sums, else -inf.
  __device__ __forceinline__ float sink_to_add() const {
    return first() == 0 ? sink_ : -INFINITY;
  }
  __device__ __forceinline__ bool has_sink() const {
    return sink_ > -INFINITY;
  }

  __device__ __forceinline__ bool given() const {
    return given_;
  }
  __device__ __forceinline__ bool selects() const {
    return k_keep_ > 0;
  }

  __device__ __forceinline__ float& score(int half, int i) {
    return lists_.scores[row(half)][i];
  }
  __device__ __forceinline__ int& key(int half, int i) {
    return lists_.keys[row(half)][i];
  }
  __device__ __forceinline__ int row(int half) const {
    return lane_ / 4 + 8 * half;
  }
  __device__ __forceinline__ int first() const {
    return lane_ % 4;
  }  // the lane's pairs: every fourth

  __device__ __forceinline__ bool any_open() const {
    return __any_sync(kWarp, rows[0].open || rows[1].open);
  }

  // Takes in a tile's scores: lists those at or above the rows' thresholds.
  __device__ __forceinline__ void look(const Scores& acc, int first_key) {
    const float most[2] = {largest_or_nan(acc, 0), largest_or_nan(acc, 1)};
    const bool hit = !(most[0] < rows[0].bound.threshold) || !(most[1] < rows[1].bound.threshold);
    if (__any_sync(kWarp, hit)) take(acc, first_key, most);
  }

  // Keeps the pairs for which bit n of keep[half] is set, where n counts the lane's pairs. The pairs kept
  // stay in order.
  __device__ __forceinline__ void compact(const uint32_t (&keep)[2]) {
    const int most = __reduce_max_sync(kWarp, max(rows[0].count, rows[1].count));
    int kept[2] = {0, 0};
#pragma unroll 1
    for (int base = 0, n = 0; base < most; base += 4, ++n) {
      const int i = base + first();
      float pair_score[2];
      int pair_key[2];
      unsigned quad_votes[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const bool there = i < rows[half].count;
        pair_score[half] = there ? score(half, i) : 0;
        pair_key[half] = there ? key(half, i) : 0;
        const unsigned votes = __ballot_sync(kWarp, there && (keep[half] >> n & 1) != 0);
        quad_votes[half] = votes >> (lane_ & ~3) & 0xF;
      }
      __syncwarp();  // all have read; what is written now lies at or before it
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if ((quad_votes[half] >> first() & 1) != 0) {
          const int to = kept[half] + __popc(quad_votes[half] & ((1u << first()) - 1));
          score(half, to) = pair_score[half];
          key(half, to) = pair_key[half];
        }
        kept[half] += __popc(quad_votes[half]);
      }
      __syncwarp();
    }
    rows[0].count = kept[0];
    rows[1].count = kept[1];
  }

  // Calls use(n, score, key) for the lane's pairs of a row, the n-th of which is pair first() + 4 n.
  template <class Use>
  __device__ __forceinline__ void for_each_pair(int half, const Use& use) {
    for (int i = first(), n = 0; i < rows[half].count; i += 4, ++n) use(n, score(half, i), key(half, i));
  }

  // Keeps the k_keep largest pairs of each row; of equal scores, those with the lower keys. The list holds
  // them all: where the support of all keys is larger than k_keep, they lie above its tau; else it is in the
  // list.
  __device__ __forceinline__ void pick_largest() {
    if (!__any_sync(kWarp, k_keep_ > 0 && max(rows[0].count, rows[1].count) > k_keep_)) return;
    uint32_t keep[2] = {0, 0};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      for_each_pair(half, [&](int n, float pair_score, int pair_key) {
        int before = 0;
#pragma unroll 4
        for (int i = 0; i < rows[half].count; ++i)
          before += precedes(score(half, i), key(half, i), pair_score, pair_key) ? 1 : 0;
        if (before < k_keep_) keep[half] |= 1u << n;
      });
    }
    __syncwarp();  // all have read
    compact(keep);
  }

 private:
  __device__ __forceinline__ void take(const Scores& acc, int first_key, const float (&most)[2]) {
    int fresh[2], total[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      RowState& state = rows[half];
      const float tile_largest = quad_larger_or_nan(most[half]);
      if (state.open && !(tile_largest < state.poison)) {
        state.poisoned = true;
        state.close();
      }
      if (state.open) state.bound.see(tile_largest, entmax_.gain, given_);
      fresh[half] = count_fresh(acc, half);
      total[half] = quad_sum(fresh[half]);
    }
    const auto many = [&](int half) { return rows[half].count + total[half] > rows[half].limit; };
    if (__any_sync(kWarp, many(0) || many(1))) {
      tighten(acc, total);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        RowState& state = rows[half];
        fresh[half] = count_fresh(acc, half);
        total[half] = quad_sum(fresh[half]);
        if (state.count + total[half] >
            kCapacity) {  // overflow: stream_kernel takes all of the row's keys again
          state.overflowed = true;
          state.close();
          fresh[half] = total[half] = 0;
        }
        state.limit = min(kCapacity, 2 * (state.count + total[half]) + 16);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int upto = fresh[half];  // of the quad's lanes up to this one
#pragma unroll
      for (int lanes = 1; lanes < 4; lanes *= 2) {
        const int lower = __shfl_up_sync(kWarp, upto, lanes, 4);
        if (first() >= lanes) upto += lower;
      }
      if (fresh[half] > 0) {
        int at = rows[half].count + upto - fresh[half];
        for_each_score(acc, half, [&](float pair_score, int in_tile) {
          if (!(pair_score >= rows[half].bound.threshold)) return;
          score(half, at) = pair_score;
          key(half, at) = first_key + in_tile;
          ++at;
        });
      }
      rows[half].count += total[half];
    }
    __syncwarp();  // the pairs are there for the whole quad
  }

  // Counts the lane's pairs by the same predicate by which take() lists them: false for NaN and -inf.
  __device__ __forceinline__ int count_fresh(const Scores& acc, int half) const {
    int count = 0;
    for_each_score(acc, half,
                   [&](float pair_score, int) { count += pair_score >= rows[half].bound.threshold ? 1 : 0; });
    return rows[half].open ? count : 0;
  }

  // Raises the rows' bounds from their lists and this tile, and drops the listed pairs that the bounds rule
  // out. total: how many of the tile's pairs are to be listed.
  __device__ __forceinline__ void tighten(const Scores& acc, const int (&total)[2]) {
    if (!given_) lower_shifts(acc);
    if (k_keep_ > 0) raise_to_kept(acc, total);
    uint32_t keep[2] = {0, 0};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      for_each_pair(half, [&](int n, float pair_score, int) {
        if (pair_score >= rows[half].bound.threshold) keep[half] |= 1u << n;
      });
    }
    __syncwarp();  // all have read
    compact(keep);
  }

  // By Newton's steps on sums over the lists and this tile.
  __device__ __forceinline__ void lower_shifts(const Scores& acc) {
    entmax_.visit([&](auto kind) {
#pragma unroll 1
      for (int step = 0; step < kNewtonSteps; ++step) {
        float sum[2] = {0, 0}, slope[2] = {0, 0};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const Bound& bound = rows[half].bound;
          const auto add = [&](float pair_score) {
            const float u = fmaf(entmax_.gain, pair_score - bound.largest, bound.shift);
            const float u_slope = entmax_.slope(kind, u);
            sum[half] = fmaf(fmaxf(u, 0.0f), u_slope, sum[half]);
            slope[half] += u_slope;
          };
          for_each_pair(half, [&](int, float pair_score, int) { add(pair_score); });
          for_each_score(acc, half, [&](float pair_score, int) { add(pair_score); });
          add(sink_to_add());
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float row_sum = quad_sum(sum[half]), row_slope = quad_sum(slope[half]);
          if (rows[half].open) rows[half].bound.lower(row_sum, row_slope, entmax_.beta);
        }
      }
    });
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (rows[half].open) rows[half].bound.aim(entmax_.gain);
    }
  }

  // Once k_keep pairs have at least some score, pairs with lower scores are not among the k_keep largest.
  // (Equal ones may be.) Bisects for such a score, kHalvings steps, and raises the threshold to it.
  __device__ __forceinline__ void raise_to_kept(const Scores& acc, const int (&total)[2]) {
    const bool more = max(rows[0].count + total[0], rows[1].count + total[1]) > k_keep_;
    if (!__any_sync(kWarp, more)) return;
    float low[2] = {rows[0].bound.threshold, rows[1].bound.threshold};
    float high[2] = {rows[0].bound.largest, rows[1].bound.largest};
#pragma unroll 1
    for (int step = 0; step < kHalvings; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float middle = step == 0 ? low[half] : 0.5f * low[half] + 0.5f * high[half];
        int count = 0;
        for_each_pair(half, [&](int, float pair_score, int) { count += pair_score >= middle ? 1 : 0; });
        for_each_score(acc, half, [&](float pair_score, int) { count += pair_score >= middle ? 1 : 0; });
        const bool enough = quad_sum(count) >= k_keep_;
        if (step == 0 && !enough) high[half] = low[half];  // the row has no more than it keeps
        low[half] = enough ? middle : low[half];
        high[half] = enough ? high[half] : middle;
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (rows[half].open) rows[half].bound.threshold = fmaxf(rows[half].bound.threshold, low[half]);
    }
  }

  static constexpr int kNewtonSteps = 4, kHalvings = 8;
  PairStorage<kCapacity>& lists_;
  const Entmax& entmax_;
  const int k_keep_;
  const float sink_;
  const bool given_;  // thresholds are
  const int lane_;
};

}  // namespace splash::gpu::entmax::portable
