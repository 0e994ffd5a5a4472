#pragma once
// The queries of a screening kernel's warp, from memory to registers.

#include <cuda_fp16.h>

#include "gpu/arch/pack_pair.cuh"
#include "gpu/entmax/math/arithmetic.cuh"
#include "gpu/entmax/math/vectors.cuh"

namespace splash::gpu::entmax::hopper {

// Loads the queries as wgmma's A fragments: 16 rows per warp. Rows and dimensions outside are zeros.
template <int kSteps>
__device__ __forceinline__ void load_queries(const ForwardProblem& p, int head, const int (&queries)[2],
                                             uint32_t (&fragments)[kSteps][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto* const q =
      static_cast<const uint16_t*>(p.q) + int64_t{head} * p.q_len * p.head_dim + 2 * (lane % 4);
  const uint16_t* const rows[2] = {q + int64_t{max(queries[0], 0)} * p.head_dim,
                                   q + int64_t{max(queries[1], 0)} * p.head_dim};
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int first_column = 16 * step + 8 * (i / 2);  // of eight: a row ends with one of these
      fragments[step][i] = queries[i % 2] >= 0 && first_column < p.head_dim
                               ? *reinterpret_cast<const uint32_t*>(rows[i % 2] + first_column)
                               : 0;
    }
  }
}

// Makes float16 of loaded queries, each scaled by a power of two to 8 <= norm < 16. unit: the scale's
// inverse. norm: at least the scaled row's; NaN or infinite where the row cannot be screened.
template <class T, int kSteps>
__device__ __forceinline__ void scale_queries(uint32_t (&fragments)[kSteps][4], float (&unit)[2],
                                              float (&norm)[2]) {
  float squares[2] = {};
#pragma unroll
  for (const auto& of_step : fragments) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = unpacked<T>(of_step[i]);
      squares[i % 2] = fmaf(pair.x, pair.x, fmaf(pair.y, pair.y, squares[i % 2]));
    }
  }
  float scale[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float row_norm = sqrtf(quad_sum(squares[half]));
    const int exponent = max(__float_as_int(row_norm) >> 23, 127 - 57);  // the floor of log2, biased
    scale[half] = __int_as_float((2 * 127 + 3 - exponent) << 23);
    unit[half] = __int_as_float((exponent - 3) << 23);
    norm[half] = row_norm < INFINITY ? fmaxf(1.0001f * row_norm * scale[half], 8.0f) : INFINITY;
  }
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = unpacked<T>(fragments[step][i]);
      fragments[step][i] = arch::pack_pair<__half>(scale[i % 2] * pair.x, scale[i % 2] * pair.y);
    }
  }
}

}  // namespace splash::gpu::entmax::hopper
