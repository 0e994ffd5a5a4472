#pragma once
// What a kernel of this ladder knows of a head and of a row, and the arithmetic of entmax.

#include <cmath>

#include "gpu/arch/reduce.cuh"
#include "gpu/ladders/splash/problem.h"

namespace splash::gpu::sparse {

constexpr unsigned kWarp = 0xFFFFFFFFu;

struct Head {
  const float *q, *k, *v;  // [length, head_dim]
  float* out;
  const int32_t *q_positions, *k_positions;
  float alpha;
};

__device__ __forceinline__ Head head_of(const Problem& p, int head) {
  const int64_t queries = static_cast<int64_t>(head) * p.q_len;
  const int64_t keys = static_cast<int64_t>(head / p.group) * p.kv_len;
  Head h{p.q + queries * p.head_dim,
         p.k + keys * p.head_dim,
         p.v + keys * p.head_dim,
         p.out + queries * p.head_dim,
         p.q_positions,
         p.k_positions,
         p.alpha[p.alphas == 1 ? 0 : head % p.q_heads]};
  if (h.k_positions != nullptr) {
    h.q_positions += queries;
    h.k_positions += static_cast<int64_t>(head) * p.kv_len;
  }
  return h;
}

// The keys that one query sees.
struct Sight {
  int end;  // keys below it, ...
  const int32_t* positions;
  int position;  // ... whose positions, if any, do not exceed this one

  __device__ __forceinline__ bool sees(int key) const {
    return key < end && (positions == nullptr || positions[key] <= position);
  }
};

// Rows past the last query see nothing.
__device__ __forceinline__ Sight sight_of(const Problem& p, const Head& h, int query) {
  if (query >= p.q_len) return {0, nullptr, 0};
  return {min(query + p.reach, p.kv_len), h.k_positions, h.q_positions == nullptr ? 0 : h.q_positions[query]};
}

// Everything that some query of [first, first + count) may see; called by all threads of a block.
__device__ __forceinline__ Sight sight_of_tile(const Problem& p, const Head& h, int first, int count) {
  const int last = min(first + count, p.q_len) - 1;
  Sight tile{min(last + p.reach, p.kv_len), h.k_positions, 0};
  if (h.q_positions == nullptr) return tile;
  __shared__ int largest;
  if (threadIdx.x == 0) largest = INT32_MIN;
  __syncthreads();
  for (int i = first + static_cast<int>(threadIdx.x); i <= last; i += static_cast<int>(blockDim.x))
    atomicMax(&largest, h.q_positions[i]);
  __syncthreads();
  tile.position = largest;
  return tile;
}

// p = u^beta for u = z - tau > 0, with z = gain * s and beta = 1 / (alpha - 1). __powf errs by 2^-22 beta
// (relative) for the u that matter, as much as u itself does, and takes a tenth of powf's instructions.
struct Entmax {
  float gain, beta;

  __device__ __forceinline__ explicit Entmax(float alpha) : gain(alpha - 1), beta(1 / (alpha - 1)) {}
  __device__ __forceinline__ float weight(float u) const {
    return u <= 0 ? 0.0f : beta == 2 ? u * u : beta == 1 ? u : __powf(u, beta);
  }
  // The derivative of weight, divided by beta.
  __device__ __forceinline__ float slope(float u) const {
    return u <= 0 ? 0.0f : beta == 2 ? u : beta == 1 ? 1.0f : __powf(u, beta - 1);
  }
  // Adds both to their sums. kSquare: alpha is 1.5, so no term needs a branch.
  template <bool kSquare>
  __device__ __forceinline__ void add(float u, float& sum, float& slopes) const {
    if constexpr (kSquare) {
      u = fmaxf(u, 0.0f);
      sum = fmaf(u, u, sum);
      slopes += u;
    } else {
      sum += weight(u);
      slopes += slope(u);
    }
  }
};

using arch::warp_max;
using arch::warp_sum;

// A sum of products as if computed in twice the precision (Ogita, Rump, Oishi 2005). It takes ten
// instructions per term, so it serves only the few scores that decide. The intrinsics keep the compiler from
// contracting operations that must round.
struct CompensatedSum {
  float sum = 0, rest = 0;

  __device__ __forceinline__ void add(float x) {
    const float after = __fadd_rn(sum, x), added = __fsub_rn(after, sum);
    rest += __fadd_rn(__fsub_rn(sum, __fsub_rn(after, added)), __fsub_rn(x, added));
    sum = after;
  }
  __device__ __forceinline__ void add_product(float x, float y) {
    const float product = __fmul_rn(x, y);
    rest += fmaf(x, y, -product);
    add(product);
  }
  __device__ __forceinline__ void add_products(const float* a, const float* b) {  // of four, 16-byte aligned
    const float4 x = *reinterpret_cast<const float4*>(a), y = *reinterpret_cast<const float4*>(b);
    add_product(x.x, y.x);
    add_product(x.y, y.y);
    add_product(x.z, y.z);
    add_product(x.w, y.w);
  }
  // The rest of an infinite sum is NaN.
  __device__ __forceinline__ float value() const { return fabsf(sum) < INFINITY ? sum + rest : sum; }
};

// start + <a, b>, by one thread.
__device__ __forceinline__ float dot(const float* a, const float* b, int dim, float start) {
  CompensatedSum s{start};
#pragma unroll 4
  for (int i = 0; i < dim; i += 4) s.add_products(a + i, b + i);
  return s.value();
}

// The same, computed by the four lanes of a quad and returned to all four. Each quad may have its own a and
// b. With one row per lane, a warp would touch 32 cache lines at once and use 16 bytes of each.
__device__ __forceinline__ int quad_lane() {
  return static_cast<int>(threadIdx.x) % 4;
}
__device__ __forceinline__ float quad_dot(const float* a, const float* b, int dim, float start) {
  CompensatedSum s{quad_lane() == 0 ? start : 0};
#pragma unroll 4
  for (int i = 4 * quad_lane(); i < dim; i += 16) s.add_products(a + i, b + i);
#pragma unroll
  for (int lanes = 1; lanes < 4; lanes *= 2) {
    const float sum = __shfl_xor_sync(kWarp, s.sum, lanes), rest = __shfl_xor_sync(kWarp, s.rest, lanes);
    s.add(sum);
    s.rest += rest;
  }
  return s.value();
}

}  // namespace splash::gpu::sparse
