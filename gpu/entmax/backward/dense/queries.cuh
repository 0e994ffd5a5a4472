#pragma once
// dQ and dL/dalpha of dense rows in one pass over the keys. delta is known only at the end, so ds is summed
// relative to another centre of the g, known at the start:
// sum u (g - delta) k = sum u (g - centre) k - (delta - centre) sum u k.
// The spread of the g bounds delta - centre, and so what is subtracted at the end.

#include <climits>

#include "gpu/entmax/backward/dense/alone.cuh"
#include "gpu/entmax/backward/dense/pairs.cuh"
#include "gpu/entmax/schedule/block_place.h"
#include "gpu/entmax/schedule/launch.cuh"

namespace splash::gpu::entmax::backward {

// kRanges: whether rows see ranges of keys (arguments/key_range.h), else all keys below an end.
template <class T, int kPanels, bool kAlpha, bool kRanges, Kind kKind>
class QueryBlock {
 public:
  using Products = PairProducts<T, kPanels>;

  // Takes the head's dense rows from `first` on, of `count` in all.
  __device__ __forceinline__ QueryBlock(const BackwardProblem& p, int head, int first, int count)
      : p_(p),
        head_(head),
        first_(first),
        count_(count),
        arithmetic_(arithmetic_of<kKind>(p, head)),
        facts_(facts_of(p, head)) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + Products::row_of(half);
      if (row < count) {
        end_[half] = end_of(facts_, row);
        shift_[half] = fact_of(facts_, row, kShift);
      }
    }
    const int warp = first + Products::warp_row(), group = first + Products::group_row();
    warp_end_ = warp < count ? end_of(facts_, warp) : INT_MAX;
    group_end_ = group < count ? end_of(facts_, min(group + 63, count - 1)) : 0;
    if (kRanges && group < count) {
      group_begin_ = begin_of(facts_, group);
      warp_begin_ = begin_of(facts_, min(warp + 15, count - 1));
    }
  }

  __device__ __forceinline__ void run(Products& products, const PairStream& keys) {
    products.hold(static_cast<const T*>(p_.dense.q) + first_element(),
                  static_cast<const T*>(p_.dense.d_out) + first_element(), first_, count_,
                  static_cast<int>(p_.head_dim));
    const int last = min(first_ + Products::Tiles::kRows, count_) - 1;
    constexpr int kKeys = Products::kParts * kDenseTile;
    const int first_tile = kRanges ? begin_of(facts_, first_) / kKeys * Products::kParts : 0;
    const int end_tile = (end_of(facts_, last) + kKeys - 1) / kKeys * Products::kParts;
    float of_slopes[32 * kPanels] = {}, of_gradients[32 * kPanels] = {};  // times K
    products.template stream<false>(
        keys, first_tile, end_tile, of_slopes, of_gradients, [&](const PairScores& g) { find_centres(g); },
        [&](int tile, const auto&) {
          return tile * kDenseTile < group_end_ && (!kRanges || tile * kDenseTile + kKeys > group_begin_);
        },
        [&](PairScores& scores, PairWeights& weights, int tile, const auto&) {
          weigh_slopes(scores, weights, tile * kDenseTile);
        },
        [&](const PairScores& scores, const PairScores& g, PairWeights& weights, const auto&) {
          weigh_gradients(scores, g, weights);
        });
    finish(of_slopes, of_gradients);
  }

 private:
  // Sums over a lane's part of its two rows.
  struct RowSums {
    float w[2] = {}, u[2] = {}, ds[2] = {};  // ds: kGradientScale u (g - centre)
    // For dL/dalpha, with h = h_of(x) - centre_h: the sums of u h, ds h and ds x.
    float u_h[2] = {}, ds_h[2] = {}, ds_x[2] = {};
  };

  __device__ __forceinline__ int64_t first_element() const {
    return int64_t{head_} * p_.dense.tiles * kDenseTile * p_.head_dim;
  }

  // Read anew, to save registers.
  __device__ __forceinline__ int begin_of_row(int half) const {
    return kRanges ? begin_of(facts_, first_ + Products::row_of(half)) : 0;
  }

  // A warp whose 16 rows give none of a step's keys weight takes no powers and logarithms (any_above_0).
  static constexpr bool kSkips = kAlpha || hopper::takes_powers<kKind>;

  // u of what weigh_slopes left in place of the score, x where kAlpha, else u. log2_x: of x, where kAlpha.
  __device__ __forceinline__ float slope_of(float left, float log2_x) const {
    return kAlpha && kKind == Kind::any ? arithmetic_.slope_of_log2(log2_x)
           : kAlpha                     ? arithmetic_.slope(left)
                                        : left;
  }
  // x (beta - beta ln x), see row_gradient.cuh; 0 where x is 0.
  __device__ __forceinline__ float h_of(float x, float log2_x) const {
    constexpr float kLn2 = 0.693147180559945f, kLeastLog2 = -100;  // log2 of 0 is -inf
    return arithmetic_.beta * x * fmaf(-kLn2, fmaxf(log2_x, kLeastLog2), 1.0f);
  }

  // Turns scores into what slope_of takes, and computes slopes as weights.
  __device__ __forceinline__ void weigh_slopes(PairScores& scores, PairWeights& weights, int first_key) {
    if (first_key + kDenseTile > warp_end_ || (kRanges && first_key < warp_begin_)) {
      const int begin[2] = {begin_of_row(0), begin_of_row(1)};
#pragma unroll
      for (int j = 0; j < kDenseTile / 2; ++j) {
        const int key = first_key + 2 * (Products::lane() % 4) + 8 * (j / 4) + j % 2, half = j / 2 % 2;
        if (key >= end_[half] || (kRanges && key < begin[half])) scores[j] = -INFINITY;
      }
    }
#pragma unroll
    for (int j = 0; j < kDenseTile / 2; ++j) scores[j] = arithmetic_.excess(scores[j], 0, shift_[j / 2 % 2]);
    float w[2] = {}, sum[2] = {};  // over this tile first, so that rounding errors stay small
    filled_ = 0;
#pragma unroll
    for (int step = 0; step < kDenseTile / kStep; ++step) {
      clear(weights[step]);
      if (kSkips && !any_above_0(scores, step)) continue;
      filled_ |= 1u << step;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int half = i % 2;
        float u[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& left = scores[kStepScores * step + 2 * i + e];
          const float x = left;
          u[e] = arithmetic_.slope(x);
          w[half] = kKind == Kind::linear ? w[half] + x : fmaf(x, u[e], w[half]);
          sum[half] += u[e];
          if constexpr (!kAlpha) left = u[e];
        }
        constexpr float kScale = kSlopeScale<T, kKind>;
        weights[step][i] = arch::pack_pair<T>(kScale * u[0], kScale * u[1]);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sums_.w[half] += w[half];
      sums_.u[half] += sum[half];
    }
  }

  __device__ __forceinline__ void weigh_gradients(const PairScores& scores, const PairScores& g,
                                                  PairWeights& weights) {
    float sum[2] = {}, u_h[2] = {}, ds_h[2] = {}, ds_x[2] = {};
#pragma unroll
    for (int step = 0; step < kDenseTile / kStep; ++step) {
      clear(weights[step]);
      if (kSkips && (filled_ >> step & 1) == 0) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int half = i % 2;
        float ds[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int j = kStepScores * step + 2 * i + e;
          const float log2_x = kAlpha ? log2_approx(scores[j]) : 0, u = slope_of(scores[j], log2_x);
          ds[e] = u * centred<T>(g[j], centre_[half]);
          sum[half] += ds[e];
          if constexpr (kAlpha) {
            const float h = h_of(scores[j], log2_x) - centre_h_[half];
            u_h[half] = fmaf(u, h, u_h[half]);
            ds_h[half] = fmaf(ds[e], h, ds_h[half]);
            ds_x[half] = fmaf(ds[e], scores[j], ds_x[half]);
          }
        }
        weights[step][i] = arch::pack_pair<T>(ds[0], ds[1]);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sums_.ds[half] += sum[half];
      if constexpr (kAlpha) {
        sums_.u_h[half] += u_h[half];
        sums_.ds_h[half] += ds_h[half];
        sums_.ds_x[half] += ds_x[half];
      }
    }
  }

  // centre: the mean g of the first tile's keys, visible or not, which lies among the other g. centre_h: h of
  // the x that all keys have where their p are alike, 1 / (number of keys).
  __device__ __forceinline__ void find_centres(const PairScores& g) {
    float sum[2] = {};
#pragma unroll
    for (int j = 0; j < kDenseTile / 2; ++j) sum[j / 2 % 2] += g[j];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float mean = arch::quad_sum(sum[half]) / kDenseTile;
      centre_[half] = fabsf(mean) < INFINITY ? mean : 0;
      const int keys = end_[half] - begin_of_row(half);
      if (!kAlpha || keys <= 0) continue;
      const float log2_x = -log2_approx(static_cast<float>(keys)) / arithmetic_.beta;
      centre_h_[half] = h_of(arch::exp2_approx(log2_x), log2_x);
    }
  }

  __device__ __forceinline__ void finish(const float (&of_slopes)[32 * kPanels],
                                         const float (&of_gradients)[32 * kPanels]) {
    const int lane = Products::lane();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_ + Products::row_of(half);
      const float w = arch::quad_sum(sums_.w[half]), u = arch::quad_sum(sums_.u[half]);
      const float ds = arch::quad_sum(sums_.ds[half]);
      const float u_h = arch::quad_sum(sums_.u_h[half]), ds_h = arch::quad_sum(sums_.ds_h[half]);
      const float ds_x = arch::quad_sum(sums_.ds_x[half]);
      const bool there = row<count_, open = u> 0;
      const float by = open ? ds / u : 0;  // kGradientScale (delta - centre)
      const int query = there ? p_.dense.from.rows.queries[int64_t{head_} * p_.q_len + row] : 0;
      const int64_t at = int64_t{head_} * p_.q_len + query;

      uint32_t* const d_q = reinterpret_cast<uint32_t*>(static_cast<T*>(p_.d_q) + at * p_.head_dim);
      // A row that sees one key: its p is 1 whatever its score, and the sums hold rounding noise.
      const bool alone = end_[half] - begin_of_row(half) == 1;
      const float factor = alone ? 0 : p_.scale / kGradientScale<T>, of_slope = by / kSlopeScale<T, kKind>;
      bool bad = !(fabsf(by) < INFINITY);
#pragma unroll
      for (int j = 0; j < 8 * kPanels; ++j) {
        const int column = 8 * j + 2 * (lane % 4);
        float x[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int i = 4 * j + 2 * half + e;
          x[e] = open ? factor * fmaf(-of_slope, of_slopes[i], of_gradients[i]) : 0;
          bad |= !(fabsf(x[e]) < INFINITY);
        }
        if (there && column < static_cast<int>(p_.head_dim)) d_q[column / 2] = arch::pack_pair<T>(x[0], x[1]);
      }
      const float inverse = open ? 1 / w : 0, beta = arithmetic_.beta;
      if (there && lane % 4 == 0) {
        fact_of(facts_, row, kDelta) = centre_[half] + by / kGradientScale<T>;
        fact_of(facts_, row, kInverse) = inverse;
        if constexpr (kAlpha) {
          const float log_sum = logf(w), h = fmaf(log_sum, ds_x, ds_h) - by * fmaf(log_sum, w, u_h);
          p_.row_alphas[at] = open && !alone ? beta * inverse / kGradientScale<T> * h : 0;
        }
      }

      bad = arch::quad_any(bad && there);
      for (unsigned left = __ballot_sync(arch::kAllLanes, bad && lane % 4 == 0); left != 0;
           left &= left - 1) {
        const int from = __ffs(static_cast<int>(left)) - 1;
        const auto of_row = [&](auto x) { return __shfl_sync(arch::kAllLanes, x, from); };
        const float2 found = query_alone<T>(p_, head_, of_row(query), of_row(begin_of_row(half)),
                                            of_row(end_[half]), of_row(shift_[half]));
        if (lane != from) continue;
        fact_of(facts_, row, kDelta) = found.x;
        fact_of(facts_, row, kInverse) = found.y;
      }
    }
  }

  const BackwardProblem& p_;
  const int head_, first_, count_;
  const Arithmetic<kKind> arithmetic_;
  float* const facts_;
  int end_[2] = {0, 0}, warp_end_, group_end_, warp_begin_ = 0, group_begin_ = 0;
  float shift_[2] = {-INFINITY, -INFINITY}, centre_[2] = {0, 0}, centre_h_[2] = {0, 0};
  uint32_t filled_ = 0;  // a bit for each step of the last tile: whether the warp gives a key weight
  RowSums sums_;
};

template <class T, int kPanels, bool kAlpha, bool kRanges>
__global__ void __launch_bounds__(PairTiles<kPanels>::kThreads, 1)
    dense_queries(const __grid_constant__ BackwardProblem p, const __grid_constant__ CUtensorMap k_map,
                  const __grid_constant__ CUtensorMap v_map) {
  wait_for_kernels_before();
  using Tiles = PairTiles<kPanels>;
  extern __shared__ __align__(1024) unsigned char dynamic[];
  if (!any_dense_rows(p)) return;
  PairProducts<T, kPanels> products(*reinterpret_cast<Tiles*>(dynamic));
  const auto heads = static_cast<int>(p.rows / p.q_len);
  const int blocks = (static_cast<int>(p.q_len) + Tiles::kRows - 1) / Tiles::kRows;  // of a head
  for (;;) {
    const int work = take_work(&p.dense.queues[0]);
    if (work >= heads * blocks) break;
    const BlockPlace place(work, blocks, heads, p.dense.heads_together);
    const int head = place.head, first = place.tile * Tiles::kRows;
    const int count = p.dense.from.rows.counts[head];
    if (first >= count) continue;
    const PairStream keys{k_map, v_map, head / static_cast<int>(p.group), nullptr};
    for_kind(p, head, [&]<Kind kKind>() {
      QueryBlock<T, kPanels, kAlpha, kRanges, kKind>(p, head, first, count).run(products, keys);
    });
  }
}

template <class T, bool kRanges>
DenseKernel dense_queries_of(uint32_t head_dim, bool with_alpha) {
  const auto with = [&]<int kPanels>() {
    return pair_kernel<kPanels>(with_alpha ? dense_queries<T, kPanels, true, kRanges>
                                           : dense_queries<T, kPanels, false, kRanges>);
  };
  return head_dim <= 64 ? with.template operator()<1>() : with.template operator()<2>();
}

}  // namespace splash::gpu::entmax::backward
