#pragma once
// Recomputes a query or a key whose dense products are not finite: one warp goes through its pairs and skips
// those outside the support. There a weight of 0 times a NaN or an infinity must add 0, not NaN; and a weight
// that overflowed 16 bits may be finite in float.

#include "gpu/entmax/backward/problem.h"
#include "gpu/entmax/backward/row_gradient.cuh"
#include "gpu/entmax/math/arithmetic.cuh"
#include "gpu/entmax/math/vectors.cuh"

namespace splash::gpu::entmax::backward {

template <class T>
__device__ __forceinline__ float dot(const T* a, const T* b, uint32_t head_dim) {
  float sum = 0;
  for (uint32_t column = 0; column < head_dim; column += 8)
    sum += dot8<T>(load8(a + column), load8(b + column));
  return sum;
}

// A row that sees the keys from `begin` to below `end`, by the whole warp. Writes its dQ and dL/dalpha;
// returns its kDelta and kInverse.
template <class T>
__device__ __noinline__ float2 query_alone(const BackwardProblem& p, int head, int query, int begin, int end,
                                           float shift) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t row = int64_t{head} * p.q_len + query;
  const int64_t first_key = int64_t{head / static_cast<int>(p.group)} * p.kv_len;
  const T* const q = static_cast<const T*>(p.q) + row * p.head_dim;
  const T* const d_out = static_cast<const T*>(p.d_out) + row * p.head_dim;
  const T* const keys = static_cast<const T*>(p.k) + first_key * p.head_dim;
  const T* const values = static_cast<const T*>(p.v) + first_key * p.head_dim;
  const Entmax entmax(p, static_cast<uint32_t>(head));
  const float gain = (entmax.alpha - 1) * p.scale;
  const auto excess_of = [&](int key) {
    return key < end ? fmaf(gain, dot(q, keys + int64_t{key} * p.head_dim, p.head_dim), shift) : 0;
  };
  const auto g_of = [&](int key) { return dot(d_out, values + int64_t{key} * p.head_dim, p.head_dim); };

  RowSums sums;
  unsigned count = 0;
  for (int first = begin; first < end; first += 32) {
    const float excess = excess_of(first + lane);
    if (excess > 0) sums.add(entmax(excess), g_of(first + lane));
    count += __popc(__ballot_sync(kWarp, excess > 0));
  }
  sums = {arch::warp_sum(sums.w), arch::warp_sum(sums.u), arch::warp_sum(sums.ug)};

  const RowGradient gradient(p, entmax, sums, count);
  const AlphaGradient alpha(gradient, sums);
  float d_q[8] = {}, d_alpha = 0;
  for (int first = begin; first < end; first += 32) {
    const float excess = excess_of(first + lane);
    float ds = 0;
    if (excess > 0) {
      const Weights x = entmax(excess);
      const float g = g_of(first + lane);
      ds = gradient.score(x, g);
      d_alpha += alpha(excess, x.u, gradient.centred(g));
    }
    for (unsigned left = __ballot_sync(kWarp, excess > 0); left != 0; left &= left - 1) {
      const int from = __ffs(static_cast<int>(left)) - 1;
      const float of_key = __shfl_sync(kWarp, ds, from);
      if (8u * lane < p.head_dim)
        add_scaled<T>(d_q, of_key, load8(keys + int64_t{first + from} * p.head_dim + 8 * lane));
    }
  }
  if (8u * lane < p.head_dim) store8(static_cast<T*>(p.d_q) + row * p.head_dim + 8 * lane, rounded<T>(d_q));
  d_alpha = arch::warp_sum(d_alpha);
  if (p.d_alpha != nullptr && lane == 0) p.row_alphas[row] = d_alpha;
  return count > 0 ? float2{gradient.delta, gradient.inverse_sum} : float2{};
}

// Adds what the dense rows contribute to a key's dK and dV, by the whole warp.
template <class T>
__device__ __noinline__ void key_alone(const BackwardProblem& p, int key_head, int key) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t at = (int64_t{key_head} * p.kv_len + key) * p.head_dim;
  const T* const k = static_cast<const T*>(p.k) + at;
  const T* const v = static_cast<const T*>(p.v) + at;
  const bool writes = 8u * lane < p.head_dim;
  float d_k[8] = {}, d_v[8] = {};
  for (int head = key_head * static_cast<int>(p.group); head < (key_head + 1) * static_cast<int>(p.group);
       ++head) {
    const Entmax entmax(p, static_cast<uint32_t>(head));
    const float gain = (entmax.alpha - 1) * p.scale;
    const int64_t first_row = int64_t{head} * p.dense.tiles * kDenseTile;
    const T* const queries = static_cast<const T*>(p.dense.q) + first_row * p.head_dim;
    const T* const d_outs = static_cast<const T*>(p.dense.d_out) + first_row * p.head_dim;
    const float* const facts = p.dense.facts + first_row * kFacts;
    const int count = p.dense.from.rows.counts[head];
    for (int first = 0; first < count; first += 32) {
      const int row = first + lane;
      const auto fact = [&](Fact f) {
        return facts[(row / kDenseTile * kFacts + f) * kDenseTile + row % kDenseTile];
      };
      float excess = 0, probability = 0, ds = 0;
      if (row < count && key >= __float_as_int(fact(kBegin)) && key < __float_as_int(fact(kEnd)))
        excess = fmaf(gain, dot(queries + int64_t{row} * p.head_dim, k, p.head_dim), fact(kShift));
      if (excess > 0) {
        const Weights x = entmax(excess);
        probability = x.w * fact(kInverse);
        ds = p.scale * x.u * (dot(d_outs + int64_t{row} * p.head_dim, v, p.head_dim) - fact(kDelta));
      }
      for (unsigned left = __ballot_sync(kWarp, excess > 0); left != 0; left &= left - 1) {
        const int from = __ffs(static_cast<int>(left)) - 1;
        const float of_value = __shfl_sync(kWarp, probability, from), of_key = __shfl_sync(kWarp, ds, from);
        if (!writes) continue;
        const int64_t column = int64_t{first + from} * p.head_dim + 8 * lane;
        add_scaled<T>(d_v, of_value, load8(d_outs + column));
        add_scaled<T>(d_k, of_key, load8(queries + column));
      }
    }
  }
  if (!writes) return;
  const auto add_to = [&](void* matrix, float(&sum)[8]) {
    T* const to = static_cast<T*>(matrix) + at + 8 * lane;
    add_scaled<T>(sum, 1, load8(to));
    store8(to, rounded<T>(sum));
  };
  add_to(p.d_k, d_k);
  add_to(p.d_v, d_v);
}

}  // namespace splash::gpu::entmax::backward
