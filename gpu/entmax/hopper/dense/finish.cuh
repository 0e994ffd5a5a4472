#pragma once
// Writes a row of the dense path: its output and tau.

#include "gpu/entmax/arguments/key_range.h"
#include "gpu/entmax/hopper/dense/sums.cuh"
#include "gpu/entmax/math/vectors.cuh"
#include "gpu/entmax/support/allocate.cuh"

namespace splash::gpu::entmax::hopper {

// Computes a row whose product with V is not finite again, by one warp: 0 times a NaN or infinity of V must
// be 0, not NaN.
template <class T, Kind kKind>
__device__ __noinline__ void gather_row(const ForwardProblem& p, int head, int query, KeyRange seen,
                                        float pivot, float shift, Arithmetic<kKind> arithmetic) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t row = int64_t{head} * p.q_len + query, first_key = int64_t{head / p.group} * p.kv_len;
  const T* const q = static_cast<const T*>(p.q) + row * p.head_dim;
  const T* const keys = static_cast<const T*>(p.k) + first_key * p.head_dim;
  const T* const values = static_cast<const T*>(p.v) + first_key * p.head_dim + 8 * lane;
  float sums[8] = {}, total = 0;
  for (int first = seen.begin; first < seen.end; first += 32) {
    float score = first + lane < seen.end ? 0 : -INFINITY;
    if (first + lane < seen.end) {
      for (int column = 0; column < p.head_dim; column += 8)
        score += dot8<T>(load8(q + column), load8(keys + int64_t{first + lane} * p.head_dim + column));
    }
    const float weight = arithmetic.weight(arithmetic.excess(score, pivot, shift));
    total += weight;
    for (unsigned keys_left = __ballot_sync(kWarp, weight > 0); keys_left != 0; keys_left &= keys_left - 1) {
      const int key = __ffs(static_cast<int>(keys_left)) - 1;
      const float key_weight = __shfl_sync(kWarp, weight, key);
      if (8 * lane < p.head_dim)
        add_scaled<T>(sums, key_weight, load8(values + int64_t{first + key} * p.head_dim));
    }
  }
  total = arch::warp_sum(total);
  for (float& x : sums) x /= total;
  if (8 * lane < p.head_dim) store8(static_cast<T*>(p.out) + row * p.head_dim + 8 * lane, rounded<T>(sums));
}

// output: products of weights and values, not yet divided by the weights' sums. range_of_row(half): the keys
// that the lane's row sees.
template <class T, Kind kKind, int kOutput, class RangeOfRow>
__device__ __forceinline__ void finish_dense(const ForwardProblem& p, int head, const int (&query)[2],
                                             const Arithmetic<kKind>& arithmetic, const DenseRows& rows,
                                             const float (&output)[kOutput], const float (&sum)[2],
                                             const RangeOfRow& range_of_row) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    bool bad = false;
#pragma unroll
    for (int j = 0; j < kOutput; j += 4) {
      bad |= !(fabsf(output[j + 2 * half]) < INFINITY) || !(fabsf(output[j + 2 * half + 1]) < INFINITY);
    }
    bad = quad_any(bad && rows.open[half]);
    for (unsigned rows_left = __ballot_sync(kWarp, bad && lane % 4 == 0); rows_left != 0;
         rows_left &= rows_left - 1) {
      const int from = __ffs(static_cast<int>(rows_left)) - 1;
      const auto broadcast = [&](auto x) { return __shfl_sync(kWarp, x, from); };
      const KeyRange seen = range_of_row(half);
      gather_row<T>(p, head, broadcast(query[half]), {broadcast(seen.begin), broadcast(seen.end)},
                    broadcast(rows.pivot[half]), broadcast(rows.root[half].shift + rows.rest[half]),
                    arithmetic);
    }
    if (query[half] < 0) continue;
    const int64_t row = int64_t{head} * p.q_len + query[half];
    if (lane % 4 == 0 && p.tau != nullptr) {
      p.tau[row] = rows.open[half]
                       ? fmaf(arithmetic.gain, rows.pivot[half], -rows.root[half].shift) - rows.rest[half]
                       : (rows.poisoned[half] ? NAN : INFINITY);
    }
    if (bad) continue;
    // Of a closed row, whose weights are 0, a product with a value that is not finite is NaN.
    const float factor = rows.open[half] ? 1 / sum[half] : 0, closed = rows.poisoned[half] ? NAN : 0.0f;
    const auto finished = [&](float product) { return rows.open[half] ? product * factor : closed; };
    uint32_t* const out = reinterpret_cast<uint32_t*>(static_cast<T*>(p.out) + row * p.head_dim);
#pragma unroll
    for (int j = 0; j < kOutput / 4; ++j) {
      const int column = 8 * j + 2 * (lane % 4);
      if (column < p.head_dim)
        out[column / 2] =
            arch::pack_pair<T>(finished(output[4 * j + 2 * half]), finished(output[4 * j + 2 * half + 1]));
    }
  }
}

}  // namespace splash::gpu::entmax::hopper
