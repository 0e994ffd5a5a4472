#pragma once
// The online softmax (Milakov, Gimelshein 2018) and the running output, for the rungs that keep scores in
// shared memory: one warp per row and one lane per key (tiles have 32 keys).

#include "gpu/ladders/wmma/common.cuh"

namespace splash::gpu::wmma_ladder {

inline constexpr int kTileN = kWarp;  // keys per tile

using arch::warp_max;
using arch::warp_sum;

// A warp's registers for its rows warp, warp + kWarps, ... In `out` a lane holds columns lane, lane + 32,
// ...; in `probability` it holds its own key's. All other members are the same in all lanes.
template <int kTileM, int kWarps, int kDim>
struct Rows {
  static constexpr int kCount = kTileM / kWarps, kColumns = kDim / kWarp;
  float max[kCount], sum[kCount], correction[kCount], probability[kCount], out[kCount][kColumns];

  __device__ Rows() {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      max[i] = -kInfinity;
      sum[i] = 0;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) out[i][c] = 0;
    }
  }
  static __device__ int lane() {
    return static_cast<int>(threadIdx.x) % kWarp;
  }
  static __device__ int row(int i) {
    return static_cast<int>(threadIdx.x) / kWarp + i * kWarps;
  }

  // The score in units of log 2, or -inf if the query does not see the key.
  __device__ static float masked(const Problem& p, const BlockTask& task, int i, int first_key, float score) {
    const bool visible = first_key + lane() < end_of_keys(p, task.first_query + row(i));
    return visible ? score * p.scale_log2 : -kInfinity;
  }

  // Raises the row's maximum to the tile's largest score; `correction` rescales what was summed before.
  __device__ void raise_max(int i, float score) {
    const float before = max[i];
    max[i] = fmaxf(before, warp_max(score));
    correction[i] = exp2f(before - shift_of(max[i]));
  }
  __device__ void exponentiate(int i, float score) {
    probability[i] = exp2f(score - shift_of(max[i]));
  }
  __device__ void add_sum(int i) {
    sum[i] = sum[i] * correction[i] + warp_sum(probability[i]);
  }

  // out = (what was summed) / sum, or zero where the query saw no key.
  template <class T>
  __device__ void write(const Problem& p, const BlockTask& task) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int query = task.first_query + row(i);
      if (query >= p.q_len) continue;
      const float inverse = sum[i] == 0 ? 0.0F : 1 / sum[i];
      T* const to = static_cast<T*>(p.out) + task.q_offset + int64_t{query} * p.head_dim;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const int column = lane() + c * kWarp;
        if (column < p.head_dim) to[column] = rounded<T>(out[i][c] * inverse);
      }
    }
  }
};

}  // namespace splash::gpu::wmma_ladder
