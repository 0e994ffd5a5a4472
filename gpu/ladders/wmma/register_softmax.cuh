#pragma once
// The online softmax on scores that stay in the tensor cores' accumulator registers. A thread holds scores of
// rows g and g + 8 of its warp's 16, g = lane / 4: s[4j + e] is that of row g + 8 (e / 2) and key
// 8j + 2 (lane % 4) + e % 2. A score costs one maximum, one multiply-add, one exponential, one addition and
// half a conversion.

#include "gpu/arch/mma.cuh"
#include "gpu/ladders/wmma/common.cuh"

namespace splash::gpu::wmma_ladder {

using arch::quad_max;
using arch::quad_sum;

// The mask of a thread's two rows: row r sees the keys below end[r]. A negative scale reverses the order of
// the scores, so they are negated first, and the caller passes the scale as a positive number.
struct RowPairMask {
  int end[2];
  bool negate;

  __device__ RowPairMask(const Problem& p, int first_query)
      : end{end_of_keys(p, first_query), end_of_keys(p, first_query + 8)}, negate(p.scale_log2 < 0) {}

  // `first_key` is that of s[0].
  template <int kCount>
  __device__ __forceinline__ void apply(float (&s)[kCount], int first_key) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const bool visible = first_key + i / 4 * 8 + i % 2 < end[i % 4 / 2];
      s[i] = visible ? (negate ? -s[i] : s[i]) : -kInfinity;
    }
  }
};

struct RowPair {
  float max[2] = {-kInfinity, -kInfinity};  // of unscaled scores
  float sum[2] = {0, 0};                    // of this thread's probabilities

  // Scores become exp2(scale * (s - max)). The caller multiplies earlier output sums by `correction`.
  template <int kCount>
  __device__ __forceinline__ void exponentiate(float (&s)[kCount], float scale, float (&correction)[2]) {
    float high[4] = {s[0], s[1], s[2], s[3]}, total[4] = {0, 0, 0, 0}, shift[2];
#pragma unroll
    for (int i = 4; i < kCount; ++i) high[i % 4] = fmaxf(high[i % 4], s[i]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float before = max[r];
      max[r] = fmaxf(before, quad_max(fmaxf(high[2 * r], high[2 * r + 1])));
      shift[r] = shift_of(max[r]) * scale;
      correction[r] = arch::exp2_approx(before * scale - shift[r]);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      s[i] = arch::exp2_approx(fmaf(s[i], scale, -shift[i % 4 / 2]));
      total[i % 4] += s[i];
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] = sum[r] * correction[r] + (total[2 * r] + total[2 * r + 1]);
  }

  // 1 / sum over all threads of a row; 0 where it saw no key.
  __device__ __forceinline__ float inverse(int r) const {
    const float total = quad_sum(sum[r]);
    return total == 0 ? 0.0F : 1 / total;
  }
};

// Scales output rows in the same layout.
template <int kCount>
__device__ __forceinline__ void scale_rows(float (&out)[kCount], const float (&scale)[2]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) out[i] *= scale[i % 4 / 2];
}

// Like rescale, but skipped if no row of the warp raised its maximum, as in most tiles.
template <int kCount>
__device__ __forceinline__ void rescale(float (&out)[kCount], const float (&correction)[2]) {
  if (__any_sync(~0U, correction[0] != 1 || correction[1] != 1)) scale_rows(out, correction);
}

// Accumulators of 16 rows by 16 columns, packed in pairs, are the left operand (rows by k) of the next
// product.
template <class T, int kCount>
__device__ __forceinline__ void pack(uint32_t (&packed)[kCount / 8][4], const float (&s)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += 2) packed[i / 8][i % 8 / 2] = arch::pack_pair<T>(s[i], s[i + 1]);
}

}  // namespace splash::gpu::wmma_ladder
