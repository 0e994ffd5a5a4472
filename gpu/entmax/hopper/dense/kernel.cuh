#pragma once
// The dense path on Hopper (sm_90a). A block takes up to 256 listed rows of a head at a time, one warpgroup
// per 64. Passes over the keys find tau: one tile, whose scores stay in registers, gives a first guess; parts
// of the tiles improve it; passes over all tiles make it exact. A last pass multiplies the weights with V.
// Each pass computes the scores anew, by the same instructions, so they have the same bits. All rows of a
// block take as many passes as the slowest: two over all keys where inputs are near-dense, about four where
// supports are small.

#include "gpu/entmax/hopper/dense/store.cuh"
#include "gpu/entmax/hopper/dense/tiles.cuh"
#include "gpu/entmax/schedule/launch.cuh"
#include "gpu/entmax/schedule/row_shares.cuh"

namespace splash::gpu::entmax::hopper {

// Solves a block's rows: tau, then output. All state is in registers.
template <class T, int kPanels, bool kRanges, Kind kKind>
class DenseBlock {
 public:
  using Tiles = DenseTiles<kPanels>;
  static constexpr int kKeys = Tiles::kKeys, kMostPasses = 40;
  static constexpr float kMostError = 9e-6f;  // of sum p: 1e-5 is promised, and the sum itself is rounded
  // A separate loop for samples is 1.4 % faster but more code to compile: only for the most common alpha.
  static constexpr bool kSamplesApart = kKind == Kind::square;

  __device__ __forceinline__ DenseBlock(const ForwardProblem& p, const Entmax& entmax,
                                        DenseProducts<T, kPanels, kRanges>& products, DenseRows& rows)
      : p_(p), products_(products), arithmetic_{entmax.gain, entmax.beta}, rows_(rows) {
    rows_ = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      rows_.open[half] = products.end[half] > 0;
      if (!rows_.open[half]) rows_.close(half);
    }
  }

  // False, and nothing is written, where scores or supports are too large for a pivot of 0. Else rows hold
  // tau.
  __device__ __forceinline__ bool run() {
    const bool any_key = products_.tiles > 0;
    if (any_key) guess();
    // Passes over all tiles from 0 on; before these, where there are enough tiles, over every 32nd and every
    // fourth, or those of near_and_far.
    constexpr bool kNearAndFar = takes_powers<kKind>;
    int passes = products_.tiles >= 64  ? (kNearAndFar ? -6 : -2)
                 : products_.tiles >= 8 ? (kNearAndFar ? -4 : -1)
                                        : 0;
    if constexpr (kSamplesApart) {
#pragma unroll 1
      for (; passes < 0; ++passes) {
        DenseSums sums;
        add_keys(stride_of(passes), sums);
        improve(sums, stride_of(passes));
      }
    }
    float near_sum[2] = {0, 0}, near_slope[2] = {0, 0};
    for (;;) {
      bool settled = true;
#pragma unroll 1
      while (any_key) {
        DenseSums sums;
        if constexpr (kNearAndFar) {
          const SomeTiles of = near_and_far(passes);
          add_keys(of.first, of.end, of.stride, sums);
          if (passes < 0) {
            improve_by_far(sums, of, near_sum, near_slope);
            ++passes;
            continue;
          }
        } else {
          const int stride = kSamplesApart ? 1 : stride_of(passes);
          add_keys(stride, sums);
          if (stride > 1) {
            improve(sums, stride);
            ++passes;
            continue;
          }
        }
        sums.reduce();
        if (passes == 0 && !take_largest(sums)) return false;
        ++passes;
        settled = true;
        bool near = true;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (!rows_.open[half] || passes > kMostPasses) continue;
          const Progress progress = advance(half, sums.sum[half], arithmetic_.beta * sums.slope[half]);
          settled &= progress == Progress::settled;
          near &= progress != Progress::far;
        }
        settled = __syncthreads_and(settled) != 0;
        near = __syncthreads_and(near) != 0 || passes >= kMostPasses;
        if (near) break;
      }
      rows_.forget();

      float output[32 * kPanels] = {}, sum[2] = {0, 0}, partial[2] = {0, 0};
      if (any_key) {
        products_.multiply_values(
            output,
            [&](const float(&scores)[kPart / 2], int, auto& weights) { weigh(scores, weights, partial); },
            [&] {
              sum[0] += partial[0];
              sum[1] += partial[1];
              partial[0] = partial[1] = 0;
            });
      }
      sum[0] = quad_sum(sum[0]);
      sum[1] = quad_sum(sum[1]);
      bool exact = true;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float error = sum[half] / Arithmetic<kKind>::template kScale<T> - 1;
        exact &= !rows_.open[half] || fabsf(error) <= kMostError;
      }
      const bool all_exact = __syncthreads_and(exact) != 0;
      // Supports may be so broad that tau needs more precision: Kind::any holds it relative to the largest
      // score.
      if (kKind != Kind::any && settled && !all_exact) return false;
      if (all_exact || settled || passes >= kMostPasses) {
        const int query[2] = {products_.query_of(0), products_.query_of(1)};
        finish_dense<T>(p_, products_.head(), query, arithmetic_, rows_, output, sum,
                        [&](int half) { return products_.range_of_row(half); });
        return true;
      }
    }
  }

 private:
  static __device__ __forceinline__ int stride_of(int pass) {
    return pass < -1 ? 32 : pass < 0 ? 4 : 1;
  }

  __device__ __forceinline__ void add_keys(int stride, DenseSums& sums) {
    add_keys(stride / 2, products_.tiles, stride, sums);
  }
  __device__ __forceinline__ void add_keys(int first, int end, int stride, DenseSums& sums) {
    products_.multiply_keys(
        first, end, stride,
        [&](const float(&scores)[kPart / 2], int) { sums.add(scores, arithmetic_, rows_); },
        [&] { sums.fold_partial(); });
  }

  // Where many keys lie so little above tau that neighbouring floats are too far apart for the shift, `rest`
  // refines it.
  __device__ __forceinline__ Progress advance(int half, float sum, float slope) {
    ThresholdRoot& root = rows_.root[half];
    if (kKind != Kind::any) return root.advance(sum, slope, arithmetic_.beta);
    const float error = sum - 1;
    if (rows_.rest[half] == 0) {
      const Progress progress = root.advance(sum, slope, arithmetic_.beta);
      if (progress != Progress::settled) return progress;
    }
    const bool nearer = rows_.rest[half] == 0 || 2 * fabsf(error) < fabsf(root.last_sum - 1);
    if (fabsf(error) <= ThresholdRoot::kTolerance || !(slope > 0) || !nearer) return Progress::settled;
    rows_.rest[half] -= error / slope;
    root.last_sum = sum;
    return Progress::near;
  }

  __device__ __forceinline__ float excess_at_0(int half) const {
    return arithmetic_.gain * (rows_.largest[half] - rows_.pivot[half]);
  }

  // A first guess, from the scores of one tile that all rows with keys see, where there is one; they stay in
  // registers.
  __device__ __forceinline__ void guess() {
    products_.keep(products_.middle, [&](const float(&scores)[Tiles::kParts][kPart / 2]) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float largest = -INFINITY;
#pragma unroll
        for (int j = 0; j < Tiles::kParts * kPart / 2; ++j) {
          if (j / 2 % 2 == half) largest = fmaxf(largest, scores[j / (kPart / 2)][j % (kPart / 2)]);
        }
        rows_.largest[half] = quad_max(largest);
        if (rows_.open[half]) start(half);
      }
#pragma unroll 1
      for (int step = 0; step < 6; ++step) {
        DenseSums sums;
#pragma unroll
        for (const auto& part : scores) sums.add(part, arithmetic_, rows_);
        extrapolate(sums, products_.middle, 1 << 30);
      }
    });
  }

  // Starts from a shift that is certainly too large: from the largest score so far and the screen's bound.
  __device__ __forceinline__ void start(int half) {
    ThresholdRoot& root = rows_.root[half];
    if (kKind == Kind::any && fabsf(rows_.largest[half]) < INFINITY) rows_.pivot[half] = rows_.largest[half];
    root.cap(excess_at_0(half));
    const float bound = products_.bound_of(half);
    if (bound > -INFINITY) {
      const float bound_z = arithmetic_.gain * bound;
      root.above =
          fminf(root.above, fmaf(arithmetic_.gain, rows_.pivot[half], 2.4e-7f * fabsf(bound_z) - bound_z));
    }
    if (root.above < INFINITY) root.shift = root.above;
    root.last_shift = root.shift;
  }

  // Keys below `end` of every stride-th tile from `first` on.
  static __device__ __forceinline__ int keys_below(int end, int first, int stride) {
    const int whole = end / kKeys;  // tiles
    int keys = whole > first ? ((whole - first - 1) / stride + 1) * kKeys : 0;
    if (whole >= first && (whole - first) % stride == 0) keys += end % kKeys;
    return keys;
  }

  // Sums over every stride-th tile from `first` on, scaled to all keys.
  __device__ __forceinline__ void extrapolate(DenseSums& sums, int first, int stride) {
    sums.reduce();
    const auto seen_below = [&](int end) { return keys_below(end, first, stride); };
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const KeyRange all = products_.range_of_row(half);
      const int seen = seen_below(all.end) - (kRanges ? seen_below(all.begin) : 0);
      if (!rows_.open[half] || seen == 0) continue;
      const float share = static_cast<float>(all.end - all.begin) / static_cast<float>(seen);
      rows_.root[half].guess(share * sums.sum[half], share * arithmetic_.beta * sums.slope[half],
                             arithmetic_.beta);
    }
  }

  // Caps the shift by the largest scores among those that were summed and reduced.
  __device__ __forceinline__ void cap_by_largest(const DenseSums& reduced) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (reduced.most[half] < 0 || reduced.most[half] >= DenseSums::kPoison) continue;
      rows_.largest[half] = fmaxf(rows_.largest[half], __int_as_float(reduced.most[half]));
      rows_.root[half].cap(excess_at_0(half));
    }
  }

  // Improves the shift, from the sums of every stride-th tile.
  __device__ __forceinline__ void improve(DenseSums& sums, int stride) {
    DenseSums reduced = sums;
    reduced.reduce();
    cap_by_largest(reduced);
    extrapolate(sums, products_.first_tile() + stride / 2, stride);
  }

  // Every stride-th tile from `first` to below `end`, counted from the first one that a row sees.
  struct SomeTiles {
    int first, end, stride;
  };

  // The tiles of a pass. Before 0 passes come in pairs: all of the last 32nd or eighth of the tiles, then
  // every 32nd or eighth of the others. In a language model's heads most of a row's support is near, and two
  // steps from an eighth of the far tiles bring the shift nearer than one from a quarter of all.
  __device__ __forceinline__ SomeTiles near_and_far(int pass) const {
    if (pass >= 0) return {0, products_.tiles, 1};
    const int share = pass < -4 ? 32 : 8, far = products_.tiles - max(products_.tiles / share, 1);
    return pass % 2 == 0 ? SomeTiles{far, products_.tiles, 1} : SomeTiles{share / 2, far, share};
  }

  // Takes the sums over near tiles, or improves the shift by these and the sums over far tiles, scaled.
  __device__ __forceinline__ void improve_by_far(DenseSums& sums, const SomeTiles& of, float (&near_sum)[2],
                                                 float (&near_slope)[2]) {
    sums.reduce();
    cap_by_largest(sums);
    const bool near = of.stride == 1;
    const int begin_tile = products_.first_tile(), end = (begin_tile + of.end) * kKeys;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (near) {
        near_sum[half] = sums.sum[half];
        near_slope[half] = sums.slope[half];
        continue;
      }
      const KeyRange all = products_.range_of_row(half);
      const int far_end = min(all.end, end), keys = far_end - all.begin;
      const auto below = [&](int key) { return keys_below(key, begin_tile + of.first, of.stride); };
      const int seen = below(far_end) - (kRanges ? below(all.begin) : 0);
      const float factor = keys > 0 && seen > 0 ? static_cast<float>(keys) / static_cast<float>(seen) : 0;
      if (rows_.open[half])
        rows_.root[half].guess(fmaf(factor, sums.sum[half], near_sum[half]),
                               arithmetic_.beta * fmaf(factor, sums.slope[half], near_slope[half]),
                               arithmetic_.beta);
    }
  }

  // Takes the largest scores, after the first pass over all keys. Rows without a score, or with NaN or +inf,
  // are closed. False where z is too large for a pivot of 0.
  __device__ __forceinline__ bool take_largest(const DenseSums& sums) {
    bool unknown = false;  // bits do not order negative scores
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!rows_.open[half]) continue;
      const int bits = sums.most[half];
      if (bits >= DenseSums::kPoison) {
        rows_.poisoned[half] = true;
        rows_.close(half);
      } else if (bits < 0) {
        unknown = true;
      } else {
        rows_.largest[half] = fmaxf(rows_.largest[half], __int_as_float(bits));
      }
    }
    if (__syncthreads_or(unknown)) {
      float largest[2] = {-INFINITY, -INFINITY};
      products_.multiply_keys(0, 1, [&](const float(&scores)[kPart / 2], int) {
#pragma unroll
        for (int j = 0; j < kPart / 2; ++j) largest[j / 2 % 2] = fmaxf(largest[j / 2 % 2], scores[j]);
      });
      rows_.largest[0] = quad_max(largest[0]);
      rows_.largest[1] = quad_max(largest[1]);
    }
    bool large = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!rows_.open[half]) continue;
      if (rows_.largest[half] == -INFINITY) {
        rows_.close(half);
        continue;
      }
      ThresholdRoot& root = rows_.root[half];
      if constexpr (kKind == Kind::any) {
        const float by = excess_at_0(half);
        rows_.pivot[half] = rows_.largest[half];
        root.shift += by;
        root.above += by;
      }
      root.cap(excess_at_0(half));
      large |= !(fabsf(arithmetic_.gain * rows_.largest[half]) <= 32);
    }
    return kKind == Kind::any || __syncthreads_or(large) == 0;
  }

  // Weights as wgmma's A fragments, and their sums before rounding.
  __device__ __forceinline__ void weigh(const float (&scores)[kPart / 2], uint32_t (&weights)[kPart / 16][4],
                                        float (&sum)[2]) {
    float part[2] = {0, 0};
    if constexpr (takes_powers<kKind>) {
      constexpr float kScale = Arithmetic<kKind>::template kScale<T>;
      float u[kPart / 2];
#pragma unroll
      for (int j = 0; j < kPart / 2; ++j) u[j] = arithmetic_.excess(scores[j], rows_, j / 2 % 2);
#pragma unroll
      for (int step = 0; step < kPart / kStep; ++step) {
        auto& of_step = weights[step];
#pragma unroll
        for (uint32_t& pair : of_step) pair = 0;
        if (!any_above_0(u, step)) continue;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int j = kStepScores * step + 2 * i;
          const float first = kScale * arithmetic_.weight(u[j]),
                      second = kScale * arithmetic_.weight(u[j + 1]);
          part[i % 2] += first;
          part[i % 2] += second;
          of_step[i] = arch::pack_pair<T>(first, second);
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < kPart / 4; ++i) {
        const int half = i % 2;
        float weight[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          weight[e] = arithmetic_.template scaled_weight<T>(scores[2 * i + e], rows_, half);
          part[half] += weight[e];
        }
        weights[i / 4][i % 4] = arch::pack_pair<T>(weight[0], weight[1]);
      }
    }
    sum[0] += part[0];
    sum[1] += part[1];
  }

  const ForwardProblem& p_;
  DenseProducts<T, kPanels, kRanges>& products_;
  const Arithmetic<kKind> arithmetic_;
  DenseRows& rows_;
};

template <class T, int kPanels, bool kRanges>
__global__ void __launch_bounds__(DenseTiles<kPanels>::kThreads, 1)
    dense_kernel(const __grid_constant__ ForwardProblem p, const __grid_constant__ CUtensorMap k_map,
                 const __grid_constant__ CUtensorMap v_map) {
  constexpr int kQueries = DenseTiles<kPanels>::kQueries;
  extern __shared__ __align__(1024) unsigned char dynamic[];
  wait_for_kernels_before();
  const int all = listed_rows(p);
  if (all == 0) return;
  const int rows_of_share =
      rows_per_share(all, static_cast<int>(gridDim.x), 64, kQueries);  // 64: of a warpgroup
  DenseProducts<T, kPanels, kRanges> products(p, k_map, v_map,
                                              *reinterpret_cast<DenseTiles<kPanels>*>(dynamic));
#pragma unroll 1
  while (products.take(rows_of_share)) {
    const Entmax entmax = entmax_of(p, products.head());
    DenseRows rows;
    const auto solve = [&](auto kind) {
      return DenseBlock<T, kPanels, kRanges, decltype(kind)::value>(p, entmax, products, rows).run();
    };
    const bool solved = entmax.is_square   ? solve(KindOf<Kind::square>{})
                        : entmax.is_linear ? solve(KindOf<Kind::linear>{})
                                           : false;
    if (!solved) solve(KindOf<Kind::any>{});
    if (p.support.columns != nullptr) store_support(p, products, entmax, rows);
  }
}

}  // namespace splash::gpu::entmax::hopper
