#pragma once
// What the rungs of this ladder share: the problem as kernels see it, element types, reductions, the softmax
// of a row.

#include <cmath>
#include <cstdint>

#include <cuda_bf16.h>

#include "core/round.h"
#include "gpu/arch/reduce.cuh"
#include "gpu/cuda_check.h"
#include "gpu/engine/trace.h"
#include "gpu/engine/variant.h"

namespace splash::gpu::large_dims {

// A kernel parameter. A head is a (batch, query head) pair.
struct Problem {
  int heads = 1;
  int group = 1;  // query heads that a key head serves
  int q_len = 1, kv_len = 1, head_dim = 8;
  float scale = 1;
  bool causal = false;

  static Problem of(const AttentionSpec& spec) {
    const AttentionShape& s = spec.shape;
    return {static_cast<int>(s.batch * s.q_heads),
            static_cast<int>(s.group()),
            static_cast<int>(s.q_len),
            static_cast<int>(s.kv_len),
            static_cast<int>(s.head_dim),
            static_cast<float>(spec.score_scale()),
            spec.mask.causal};
  }

  // Where a head's rows begin, in elements. q_heads is a multiple of the group, so one division finds the key
  // head.
  __host__ __device__ int64_t q_offset(int head) const { return int64_t{head} * q_len * head_dim; }
  __host__ __device__ int64_t kv_offset(int head) const {
    return int64_t{group == 1 ? head : head / group} * kv_len * head_dim;
  }

  // The query sees keys [0, visible_keys).
  __host__ __device__ int visible_keys(int query) const {
    const int seen = causal ? query + 1 + kv_len - q_len : kv_len;
    return seen < 0 ? 0 : seen > kv_len ? kv_len : seen;
  }

  // Number of key tiles that the queries up to last_query need. It is at least one, so that the kernel also
  // writes rows that see no key.
  __host__ __device__ int key_tiles(int last_query, int tile) const {
    const int seen = visible_keys(last_query < q_len ? last_query : q_len - 1);
    return seen == 0 ? 1 : (seen + tile - 1) / tile;
  }
};

// Calls f with a value of the element type.
template <class F>
auto with_element(Dtype dtype, F&& f) {
  return dtype == Dtype::bf16 ? f(__nv_bfloat16{}) : f(float{});
}

__device__ inline float to_float(float x) {
  return x;
}
__device__ inline float to_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
template <class T>
__device__ T from_float(float x) {
  if constexpr (sizeof(T) == 4) {
    return x;
  } else {
    return __float2bfloat16_rn(x);
  }
}

using arch::warp_max;
using arch::warp_sum;

// exp(x - max) of a row whose largest score is max; a row without a visible key (max -inf) gives zeros. NaN
// scores pass through, and +inf - inf makes a NaN: either spoils the row's sum and so the whole row, as it
// should.
__device__ inline float weight(float x, float max) {
  constexpr float kLog2e = 1.4426950408889634f;
  return exp2f((x - (max == -INFINITY ? 0.0f : max)) * kLog2e);
}

// The factor that finally normalises a row's accumulated output.
__device__ inline float normalization(float sum) {
  return sum == 0.0f ? 0.0f : 1.0f / sum;
}

}  // namespace splash::gpu::large_dims
