#pragma once
// What dense rows add to dK and dV. A block holds 128 keys and streams all dense rows that see them, one
// query head of their group after the other.

#include "gpu/entmax/arguments/key_range.h"
#include "gpu/entmax/backward/dense/alone.cuh"
#include "gpu/entmax/backward/dense/pairs.cuh"
#include "gpu/entmax/schedule/block_place.h"
#include "gpu/entmax/schedule/launch.cuh"

namespace splash::gpu::entmax::backward {

// The index of the first of `count` rows that are not before a border; count where all are. before(row) falls
// once from true to false. By the whole warp.
template <class Before>
__device__ __forceinline__ int rows_before(int count, const Before& before) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int first = 0, rows = count;  // the index is in [first, first + rows]
  while (rows > 0) {
    const int step = (rows + 31) / 32, at = min((lane + 1) * step, rows) - 1;
    const int below = __popc(__ballot_sync(arch::kAllLanes, before(first + at)));
    const int skipped = min(below * step, rows);
    first += skipped;
    rows = min(step - 1, rows - skipped);
  }
  return first;
}

// The head's dense rows that see a key from `first` to `last`, of `count` in all: [begin, end). By the whole
// warp.
template <bool kRanges>
__device__ __forceinline__ KeyRange rows_seeing(const BackwardProblem& p, int head, int count, int first,
                                                int last) {
  if constexpr (kRanges) {
    float* const facts = facts_of(p, head);
    return {rows_before(count, [&](int row) { return end_of(facts, row) <= first; }),
            rows_before(count, [&](int row) { return begin_of(facts, row) <= last; })};
  }
  const int* const queries = p.dense.from.rows.queries + int64_t{head} * p.q_len;
  const int query = first - p.dense.reach + 1;
  return {rows_before(count, [&](int row) { return queries[row] < query; }), count};
}

// kRanges: whether rows see ranges of keys (arguments/key_range.h), else all keys below an end.
template <class T, int kPanels, bool kRanges, Kind kKind>
class KeyBlock {
 public:
  using Products = PairProducts<T, kPanels>;
  using Facts = float[kFacts][kDenseTile];

  // Keys from `first` on, of the head's key head.
  __device__ __forceinline__ KeyBlock(const BackwardProblem& p, int head, int first)
      : arithmetic_(arithmetic_of<kKind>(p, head)), first_(first) {}

  __device__ __forceinline__ void run(Products& products, const PairStream& rows, int first_tile,
                                      int end_tile, float (&d_v)[32 * kPanels], float (&d_k)[32 * kPanels]) {
    products.template stream<true>(
        rows, first_tile, end_tile, d_v, d_k, nullptr,
        [&](int,
            const auto& facts) {  // the first row of the tiles sees the first keys, the last row the last
          const int key = first_ + Products::group_row();
          return key < __float_as_int(facts[Products::kParts - 1][kEnd][kDenseTile - 1]) &&
                 (!kRanges || key + 63 >= __float_as_int(facts[0][kBegin][0]));
        },
        [&](PairScores& scores, PairWeights& weights, int, const Facts& facts) {
          weigh_probabilities(scores, weights, facts);
        },
        [&](const PairScores& slopes, const PairScores& g, PairWeights& weights, const Facts& facts) {
          weigh_gradients(slopes, g, weights, facts);
        });
  }

 private:
  // A warp whose 16 keys have no weight in a step of rows takes no powers (any_above_0).
  static constexpr bool kSkips = hopper::takes_powers<kKind>;

  // The fact of the two rows in columns 8 j + 2 (lane % 4) and the next.
  static __device__ __forceinline__ float2 pair(const Facts& facts, Fact fact, int j) {
    return *reinterpret_cast<const float2*>(&facts[fact][8 * j + 2 * (Products::lane() % 4)]);
  }

  // Turns scores into slopes, and computes probabilities as weights.
  __device__ __forceinline__ void weigh_probabilities(PairScores& scores, PairWeights& weights,
                                                      const Facts& facts) {
    const int warp = first_ + Products::warp_row();
    const int key = first_ + Products::row_of(0);
    if (warp + 15 >= __float_as_int(facts[kEnd][0])) {
#pragma unroll
      for (int j = 0; j < kDenseTile / 8; ++j) {
        const float2 ends = pair(facts, kEnd, j);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (key + 8 * half >= __float_as_int(ends.x)) scores[4 * j + 2 * half] = -INFINITY;
          if (key + 8 * half >= __float_as_int(ends.y)) scores[4 * j + 2 * half + 1] = -INFINITY;
        }
      }
    }
    if (kRanges && warp < __float_as_int(facts[kBegin][kDenseTile - 1])) {
#pragma unroll
      for (int j = 0; j < kDenseTile / 8; ++j) {
        const float2 begins = pair(facts, kBegin, j);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (key + 8 * half < __float_as_int(begins.x)) scores[4 * j + 2 * half] = -INFINITY;
          if (key + 8 * half < __float_as_int(begins.y)) scores[4 * j + 2 * half + 1] = -INFINITY;
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kDenseTile / 8; ++j) {
      const float2 shifts = pair(facts, kShift, j);
#pragma unroll
      for (int i = 4 * j; i < 4 * j + 4; ++i)
        scores[i] = arithmetic_.excess(scores[i], 0, i % 2 == 0 ? shifts.x : shifts.y);
    }
    filled_ = 0;
#pragma unroll
    for (int step = 0; step < kDenseTile / kStep; ++step) {
      clear(weights[step]);
      if (kSkips && !any_above_0(scores, step)) continue;
      filled_ |= 1u << step;
#pragma unroll
      for (int j = 2 * step; j < 2 * step + 2; ++j) {
        const float2 inverses = pair(facts, kInverse, j);
        const float factor[2] = {kProbabilityScale<T> * inverses.x, kProbabilityScale<T> * inverses.y};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float probability[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& score = scores[4 * j + 2 * half + e];
            const float x = score;
            score = arithmetic_.slope(x);
            probability[e] = kKind == Kind::linear ? x * factor[e] : x * (score * factor[e]);
          }
          weights[step][j % 2 * 2 + half] = arch::pack_pair<T>(probability[0], probability[1]);
        }
      }
    }
  }

  __device__ __forceinline__ void weigh_gradients(const PairScores& slopes, const PairScores& g,
                                                  PairWeights& weights, const Facts& facts) const {
#pragma unroll
    for (int step = 0; step < kDenseTile / kStep; ++step) {
      clear(weights[step]);
      if (kSkips && (filled_ >> step & 1) == 0) continue;
#pragma unroll
      for (int j = 2 * step; j < 2 * step + 2; ++j) {
        const float2 deltas = pair(facts, kDelta, j);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int i = 4 * j + 2 * half;
          weights[step][j % 2 * 2 + half] = arch::pack_pair<T>(
              slopes[i] * centred<T>(g[i], deltas.x), slopes[i + 1] * centred<T>(g[i + 1], deltas.y));
        }
      }
    }
  }

  const Arithmetic<kKind> arithmetic_;
  const int first_;
  uint32_t filled_ =
      0;  // a bit for each step of the last tile: whether a row gives one of the warp's keys weight
};

// Adds d_v and d_k of the lane's keys to what p.d_v and p.d_k hold.
template <class T, int kPanels>
__device__ __forceinline__ void add_columns(const BackwardProblem& p, int key_head, int first_key,
                                            const float (&d_v)[32 * kPanels],
                                            const float (&d_k)[32 * kPanels]) {
  using Products = PairProducts<T, kPanels>;
  const int lane = Products::lane();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int key = first_key + Products::row_of(half);
    const bool there = key < static_cast<int>(p.kv_len);
    bool bad = false;
#pragma unroll
    for (int j = 2 * half; j < 32 * kPanels; j += 4) {
#pragma unroll
      for (int e = 0; e < 2; ++e) bad |= !(fabsf(d_v[j + e]) < INFINITY) || !(fabsf(d_k[j + e]) < INFINITY);
    }
    bad = arch::quad_any(bad && there);
    for (unsigned left = __ballot_sync(arch::kAllLanes, bad && lane % 4 == 0); left != 0; left &= left - 1) {
      const int from = __ffs(static_cast<int>(left)) - 1;
      key_alone<T>(p, key_head, __shfl_sync(arch::kAllLanes, key, from));
    }
    if (bad || !there) continue;
    const int64_t at = (int64_t{key_head} * p.kv_len + key) * p.head_dim;
    const auto add = [&](void* matrix, const float(&sum)[32 * kPanels], float factor) {
      auto* const to = reinterpret_cast<uint32_t*>(static_cast<T*>(matrix) + at) + lane % 4;
      const int columns = static_cast<int>(p.head_dim) - 2 * (lane % 4);  // from the lane's first on
      uint32_t before[8 * kPanels];  // all loads are issued before the first is used
#pragma unroll
      for (int j = 0; j < 8 * kPanels; ++j) before[j] = 8 * j < columns ? to[4 * j] : 0;
#pragma unroll
      for (int j = 0; j < 8 * kPanels; ++j) {
        const float2 x = unpacked<T>(before[j]);
        const int i = 4 * j + 2 * half;
        if (8 * j < columns)
          to[4 * j] = arch::pack_pair<T>(fmaf(factor, sum[i], x.x), fmaf(factor, sum[i + 1], x.y));
      }
    };
    add(p.d_v, d_v, 1 / kProbabilityScale<T>);
    add(p.d_k, d_k, p.scale / kGradientScale<T>);
  }
}

template <class T, int kPanels, bool kRanges>
__global__ void __launch_bounds__(PairTiles<kPanels>::kThreads, 1)
    dense_keys(const __grid_constant__ BackwardProblem p, const __grid_constant__ CUtensorMap q_map,
               const __grid_constant__ CUtensorMap d_out_map) {
  wait_for_kernels_before();
  using Tiles = PairTiles<kPanels>;
  extern __shared__ __align__(1024) unsigned char dynamic[];
  if (!any_dense_rows(p)) return;
  PairProducts<T, kPanels> products(*reinterpret_cast<Tiles*>(dynamic));
  const auto kv_len = static_cast<int>(p.kv_len), group = static_cast<int>(p.group);
  constexpr int kParts = Tiles::kParts, kRows = kParts * kDenseTile;  // per TMA load
  const int key_heads = static_cast<int>(p.keys) / kv_len;
  const int blocks = (kv_len + Tiles::kRows - 1) / Tiles::kRows;  // of a key head
  for (;;) {
    const int work = take_work(&p.dense.queues[1]);
    if (work >= key_heads * blocks) break;
    const BlockPlace place(work, blocks, key_heads, p.dense.heads_together);
    const int key_head = place.head, first = (blocks - 1 - place.tile) * Tiles::kRows;  // most rows first
    float d_v[32 * kPanels] = {}, d_k[32 * kPanels] = {};
    bool holds = false;
#pragma unroll 1
    for (int head = key_head * group; head < (key_head + 1) * group; ++head) {
      const int count = p.dense.from.rows.counts[head];
      const KeyRange seeing = rows_seeing<kRanges>(p, head, count, first, first + Tiles::kRows - 1);
      if (seeing.begin >= seeing.end) continue;
      if (!holds) {
        const int64_t at = int64_t{key_head} * kv_len * p.head_dim;
        products.hold(static_cast<const T*>(p.k) + at, static_cast<const T*>(p.v) + at, first, kv_len,
                      static_cast<int>(p.head_dim));
        holds = true;
      }
      const PairStream rows{q_map, d_out_map, head, facts_of(p, head)};
      for_kind(p, head, [&]<Kind kKind>() {
        KeyBlock<T, kPanels, kRanges, kKind>(p, head, first)
            .run(products, rows, seeing.begin / kRows * kParts, (seeing.end + kRows - 1) / kRows * kParts,
                 d_v, d_k);
      });
    }
    if (holds) add_columns<T, kPanels>(p, key_head, first, d_v, d_k);
  }
}

template <class T, bool kRanges>
DenseKernel dense_keys_of(uint32_t head_dim) {
  return head_dim <= 64 ? pair_kernel<1>(dense_keys<T, 1, kRanges>)
                        : pair_kernel<2>(dense_keys<T, 2, kRanges>);
}

}  // namespace splash::gpu::entmax::backward
