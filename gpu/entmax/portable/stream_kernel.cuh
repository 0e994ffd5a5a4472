#pragma once
// Computes the rows that screen_kernel deferred; p.rows lists them per head. Passes over all keys sum weights
// but store no scores, until tau is found (about five passes, at most kMostPasses, whatever the support; one
// where tau is given). One more pass gives output and support.

#include "gpu/entmax/math/threshold_root.h"
#include "gpu/entmax/portable/lists.cuh"
#include "gpu/entmax/portable/select.cuh"
#include "gpu/entmax/portable/vector.cuh"
#include "gpu/entmax/support/allocate.cuh"

namespace splash::gpu::entmax::portable {

template <class T, int kDim>
struct StreamShared {
  using Tiles = portable::Tiles<T, kDim>;
  union WarpScratch {
    alignas(16) float weights[kTileKeys][kWarpRows];
    Histograms histograms;
  };
  typename Tiles::Stage stages[2];
  typename Tiles::Queries queries;
  WarpScratch scratch[Tiles::kWarps];
  KeyRange block;
};

// A sum whose rounding errors do not grow with its length (Kahan 1965).
struct LongSum {
  float sum = 0, lost = 0;

  __device__ __forceinline__ void add(float x) {
    const float y = x - lost, next = sum + y;
    lost = (next - sum) - y;
    sum = next;
  }
};

template <class T, int kDim>
class StreamBlock {
  using Tiles = portable::Tiles<T, kDim>;
  static constexpr int kParts = kDim > 128 ? 2 : 1;     // of an output row, one pass each: saves registers
  static constexpr int kElements = kDim / kParts / 32;  // of a part, per lane
  static constexpr int kMostPasses = 40, kMostFine = 4;
  static constexpr int kPartialTiles = 4;  // per partial sum
  using Values = Vector<T, kElements>;

 public:
  __device__ __forceinline__ StreamBlock(const PortableProblem& p, int head, const int (&query)[2],
                                         Products<T, kDim, false>& products,
                                         typename StreamShared<T, kDim>::WarpScratch& scratch)
      : p_(p),
        products_(products),
        scratch_(scratch),
        entmax_(entmax_of(p, head)),
        given_(p.tau_offsets != nullptr),
        sink_(sink_of(p, head)),
        head_(head),
        lane_(static_cast<int>(threadIdx.x) % 32),
        query_{query[0], query[1]} {}

  // All threads of the block.
  __device__ __forceinline__ void run() {
    find_largest();
    if (const int k_keep = k_keep_of(p_, head_); k_keep > 0)
      select_largest(products_, scratch_.histograms, k_keep, open_, kept_);
    find_shifts();
    write();
  }

 private:
  __device__ __forceinline__ int row(int half) const { return lane_ / 4 + 8 * half; }

  // u = z - tau; -inf where the row is closed or the key is not kept.
  __device__ __forceinline__ float excess(float score, int key, int half) const {
    const float u = fmaf(entmax_.gain, score - largest_[half], root_[half].shift) + rest_[half];
    return kept_[half](score, key) ? u : -INFINITY;
  }

  // Calls use(kind, half, u, which key of the tile) for each of the lane's scores. Unrolled for alpha 1.5
  // alone: the code for other alphas is slow to compile, so their u pass through shared memory to a short
  // loop.
  template <class Use>
  __device__ __forceinline__ void for_each_excess(const Scores& acc, int first_key, const Use& use) {
    if (entmax_.is_square) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        for_each_score(acc, half, [&](float score, int in_tile) {
          use(SquareWeights{}, half, excess(score, first_key + in_tile, half), in_tile);
        });
      }
      return;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      for_each_score(acc, half, [&](float score, int in_tile) {
        scratch_.weights[in_tile][row(half)] = excess(score, first_key + in_tile, half);
      });
    }
#pragma unroll 1
    for (int pair = 2 * (lane_ % 4); pair < kTileKeys; pair += 8) {
#pragma unroll
      for (int in_tile = pair; in_tile < pair + 2; ++in_tile) {
        use(AnyAlpha{}, 0, scratch_.weights[in_tile][row(0)], in_tile);
        use(AnyAlpha{}, 1, scratch_.weights[in_tile][row(1)], in_tile);
      }
    }
  }

  __device__ __forceinline__ void find_largest() {
    products_.for_each_tile([&](const Scores& acc, int) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        largest_[half] = larger_or_nan(largest_[half], largest_or_nan(acc, half));
    });
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      largest_[half] = quad_larger_or_nan(largest_[half]);
      const bool sees = products_.rows().sees(half);
      poisoned_[half] = sees && !(largest_[half] < INFINITY);
      open_[half] = sees && largest_[half] < INFINITY && largest_[half] > -INFINITY;
      if (!open_[half]) kept_[half].floor = INFINITY;  // none
      largest_[half] = fmaxf(largest_[half], sink_);
      root_[half].cap(0);
      // The largest key alone has p <= 1, so the shift is at most 1. screen_kernel handles NaN offsets.
      root_[half].shift = given_ ? given_shift(p_, entmax_, head_, query_[half]) : 1;
    }
  }

  __device__ __forceinline__ void find_shifts() {
    bool settled[2] = {!open_[0], !open_[1]};
#pragma unroll 1
    for (int pass = 1; pass <= kMostPasses; ++pass) {
      // A warp whose rows are all settled keeps what it counted at their shifts.
      const bool wanted = __any_sync(kWarp, !settled[0] || !settled[1]);
      LongSum sum[2], slope[2];
      int count[2] = {0, 0};
      products_.template for_each_tile<false>(
          [&](const Scores& acc, int first_key) {
            float tile_sum[2] = {0, 0}, tile_slope[2] = {0, 0};
            for_each_excess(acc, first_key, [&](auto kind, int half, float u, int) {
              const float u_slope = entmax_.slope(kind, u);
              tile_sum[half] = fmaf(fmaxf(u, 0.0f), u_slope, tile_sum[half]);
              tile_slope[half] += u_slope;
              count[half] += u > 0 ? 1 : 0;
            });
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              sum[half].add(tile_sum[half]);
              slope[half].add(tile_slope[half]);
            }
          },
          [&] { return wanted; });
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float of_sink = fmaf(entmax_.gain, sink_ - largest_[half], root_[half].shift) + rest_[half];
        const float row_sum = quad_sum(sum[half].sum) + entmax_.weight(of_sink);
        const float row_slope = entmax_.beta * (quad_sum(slope[half].sum) + entmax_.slope(of_sink));
        if (!wanted) continue;
        sum_[half] = row_sum;
        count_[half] = count[half];
        if (settled[half]) continue;
        // A root that is settled has not moved: sum and count are those at its shift.
        settled[half] = given_ || pass == kMostPasses || advance(half, row_sum, row_slope);
      }
      if (!__syncthreads_or(!settled[0] || !settled[1])) break;
    }
  }

  // Whether sum is 1 as precisely as it can be. Where many keys lie so little above tau that neighbouring
  // float shifts are too far apart, rest_ holds what the shift's rounding leaves out.
  __device__ __forceinline__ bool advance(int half, float sum, float slope) {
    const float error = sum - 1;
    if (fine_[half] == 0 && root_[half].advance(sum, slope, entmax_.beta) != Progress::settled) return false;
    if (fabsf(error) <= ThresholdRoot::kTolerance || !(slope > 0) || fine_[half] == kMostFine) return true;
    ++fine_[half];
    rest_[half] -= error / slope;
    return false;
  }

  __device__ __forceinline__ void write() {
    int64_t at[2] = {-1, -1};  // a lane's entries follow one another
    if (p_.support.columns != nullptr) place_support(p_, head_, query_, count_, at);
    const int64_t first_row_of_head = int64_t{head_} * p_.q_len;
    const DropoutFactors dropout[2] = {{p_.dropout, first_row_of_head + query_[0]},
                                       {p_.dropout, first_row_of_head + query_[1]}};
#pragma unroll 1
    for (int part = 0; part < kParts; ++part) {
      const int column = kElements * (32 * part + lane_), first = 2 * (lane_ % 4);
      const bool has_elements = column < p_.head_dim;
      const T* const values =
          static_cast<const T*>(p_.v) + int64_t{head_ / p_.group} * p_.kv_len * p_.head_dim + column;
      float output[kWarpRows][kElements] = {};
      volatile float total[kWarpRows][kElements];  // in local memory, where it costs no registers
      for (auto& row_total : total) {
        for (volatile float& x : row_total) x = 0;
      }
      int tiles = 0;
      products_.for_each_tile([&](const Scores& acc, int first_key) {
        unsigned long long active = 0;  // keys that have weight in some row
        for_each_excess(acc, first_key, [&](auto kind, int half, float u, int in_tile) {
          float weight = fmaxf(u, 0.0f) * entmax_.slope(kind, u);
          if (weight > 0) weight *= dropout[half].of(first_key + in_tile);
          scratch_.weights[in_tile][row(half)] = weight;
          if (weight > 0) active |= 1ull << (in_tile - first);
          if (u > 0 && at[half] >= 0) {
            p_.support.columns[at[half]] = first_key + in_tile;
            p_.support.excess[at[half]++] = u;
          }
        });
        active <<= first;
#pragma unroll
        for (int lanes = 1; lanes < 32; lanes *= 2) active |= __shfl_xor_sync(kWarp, active, lanes);
        __syncwarp();  // all weights are there
        add_values(active, values + int64_t{first_key} * p_.head_dim, has_elements, output);
        if (++tiles % kPartialTiles == 0) add_to_total(output, total);
        __syncwarp();  // they may be written again
      });
      add_to_total(output, total);
#pragma unroll
      for (int r = 0; r < kWarpRows; ++r) {
#pragma unroll
        for (int e = 0; e < kElements; ++e) output[r][e] += total[r][e];
      }
      write_rows(output, column, has_elements);
      at[0] = at[1] = -1;  // the support is stored
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (lane_ % 4 != 0 || query_[half] < 0 || p_.tau == nullptr) continue;
      p_.tau[int64_t{head_} * p_.q_len + query_[half]] =
          open_[half]         ? fmaf(entmax_.gain, largest_[half], -root_[half].shift) - rest_[half]
          : poisoned_[half]   ? NAN
          : sink_ > -INFINITY ? fmaf(entmax_.gain, sink_, -1.0f)
                              : INFINITY;
    }
  }

  // active: the same for all lanes. A value without weight in a row is not added to it, for it may be NaN.
  __device__ __forceinline__ void add_values(unsigned long long active, const T* values, bool has_elements,
                                             float (&output)[kWarpRows][kElements]) const {
    constexpr int kFlight = sizeof(Values) == 16 ? 2 : 4;
#pragma unroll 1
    while (active != 0) {
      int key[kFlight];
      Values key_values[kFlight];
#pragma unroll
      for (int i = 0; i < kFlight; ++i) {
        key[i] = __ffsll(static_cast<long long>(active)) - 1;  // -1: no more
        active &= active - 1;
        if (key[i] >= 0 && has_elements) key_values[i] = Values::load(values + int64_t{key[i]} * p_.head_dim);
      }
#pragma unroll
      for (int i = 0; i < kFlight; ++i) {
        if (key[i] < 0 || !has_elements) continue;
#pragma unroll
        for (int four = 0; four < kWarpRows; four += 4) {
          const auto w = *reinterpret_cast<const float4*>(&scratch_.weights[key[i]][four]);
          if (w.x > 0) key_values[i].add_to(output[four], w.x);
          if (w.y > 0) key_values[i].add_to(output[four + 1], w.y);
          if (w.z > 0) key_values[i].add_to(output[four + 2], w.z);
          if (w.w > 0) key_values[i].add_to(output[four + 3], w.w);
        }
      }
    }
  }

  // Adds a partial sum of the output to the total, which keeps rounding errors from growing with the number
  // of keys. The rounding error of this addition starts the next partial sum.
  static __device__ __forceinline__ void add_to_total(float (&output)[kWarpRows][kElements],
                                                      volatile float (&total)[kWarpRows][kElements]) {
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        const float before = total[r][e], sum = before + output[r][e];
        total[r][e] = sum;
        output[r][e] = fabsf(sum) < INFINITY ? before - sum + output[r][e] : 0;
      }
    }
  }

  __device__ __forceinline__ void write_rows(float (&output)[kWarpRows][kElements], int column,
                                             bool has_elements) const {
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
      const int half = r / 8, from = r % 8 * 4;
      const int query = __shfl_sync(kWarp, query_[half], from);
      const float none = poisoned_[half] ? NAN : 0.0f;
      const float factor = __shfl_sync(kWarp, open_[half] ? 1 / sum_[half] : none, from);
      if (query < 0 || !has_elements) continue;
#pragma unroll
      for (float& x : output[r]) x *= factor;
      Values::store(static_cast<T*>(p_.out) + (int64_t{head_} * p_.q_len + query) * p_.head_dim + column,
                    output[r]);
    }
  }

  const PortableProblem& p_;
  Products<T, kDim, false>& products_;
  typename StreamShared<T, kDim>::WarpScratch& scratch_;
  const Entmax entmax_;
  const bool given_;  // thresholds are
  const float sink_;
  const int head_, lane_;
  const int query_[2];
  float largest_[2] = {-INFINITY, -INFINITY};
  bool open_[2] = {false, false}, poisoned_[2] = {false, false};
  Kept kept_[2];
  ThresholdRoot root_[2];
  float rest_[2] = {0, 0};  // to be added to the shift
  int fine_[2] = {0, 0};    // steps that rest_ has taken
  float sum_[2] = {0, 0};
  int count_[2] = {0, 0};  // the lane's own entries
};

template <class T, int kDim>
__global__ void __launch_bounds__(Tiles<T, kDim>::kThreads, 1)
    stream_kernel(const __grid_constant__ PortableProblem p) {
  using Tiles = portable::Tiles<T, kDim>;
  using Shared = StreamShared<T, kDim>;
  extern __shared__ __align__(16) unsigned char dynamic[];
  Shared& shared = *reinterpret_cast<Shared*>(dynamic);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int head = static_cast<int>(blockIdx.x) % p.heads;
  const int first_row = static_cast<int>(blockIdx.x) / p.heads * Tiles::kQueries;
  const int present = p.rows.counts[head];
  if (first_row >= present) return;
  const int* const gathered = p.rows.queries + int64_t{head} * p.q_len;
  const auto query_of = [&](int row) { return first_row + row < present ? gathered[first_row + row] : -1; };
  const int query[2] = {query_of(warp * kWarpRows + lane / 4), query_of(warp * kWarpRows + lane / 4 + 8)};
  Products<T, kDim, false> products(p, shared.stages, shared.queries, shared.block, head, query, query_of);
  StreamBlock<T, kDim>(p, head, query, products, shared.scratch[warp]).run();
}

}  // namespace splash::gpu::entmax::portable
