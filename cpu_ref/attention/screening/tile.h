#pragma once
// The register tile of the screening product: kTileRows queries x kPanelKeys keys, z = <q', k> accumulated
// over head_dim.
//
// Lower bound on the time: 2 * head_dim FLOPs per (query, key) pair at the machine's FMA rate. With 12 x 32
// accumulators (AVX-512), one step of head_dim costs 24 FMAs, 12 broadcasts and 2 loads, so the two FMA ports
// are the limit, not the load ports.

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace splash::cpu_ref::screening {

#if defined(__AVX512F__)
constexpr int kLanes = 16;     // floats per vector register
constexpr int kTileRows = 12;  // 24 of 32 registers accumulate
#elif defined(__AVX2__)
constexpr int kLanes = 8;
constexpr int kTileRows = 6;  // 12 of 16 registers
#else
constexpr int kLanes = 4;
constexpr int kTileRows = 4;
#endif
constexpr int kPanelKeys = 2 * kLanes;

using Vector = float __attribute__((vector_size(kLanes * sizeof(float))));
using UnalignedVector = float __attribute__((vector_size(kLanes * sizeof(float)), aligned(4)));

using Tile = std::array<std::array<Vector, 2>, kTileRows>;

// q: [head_dim, kTileRows], panel: [head_dim, kPanelKeys].
[[gnu::always_inline]] inline Tile multiply_tile(const float* q, const float* panel, int64_t head_dim) {
  Vector sums[kTileRows][2] = {};  // a plain array: std::array here goes through memory in every step
  for (int64_t d = 0; d < head_dim; ++d) {
    const auto* keys = reinterpret_cast<const UnalignedVector*>(panel + d * kPanelKeys);
    const Vector k0 = keys[0];
    const Vector k1 = keys[1];
#pragma GCC unroll 12
    for (int r = 0; r < kTileRows; ++r) {
      const float broadcast = q[d * kTileRows + r];
      sums[r][0] += broadcast * k0;
      sums[r][1] += broadcast * k1;
    }
  }
  Tile tile;
#pragma GCC unroll 12
  for (int r = 0; r < kTileRows; ++r) tile[r] = {sums[r][0], sums[r][1]};
  return tile;
}

// Whether any of the row's products is above the threshold.
[[gnu::always_inline]] inline bool any_above(const std::array<Vector, 2>& row, float threshold) {
#if defined(__AVX512F__)
  const __m512 t = _mm512_set1_ps(threshold);
  const auto low = _mm512_cmp_ps_mask(reinterpret_cast<__m512>(row[0]), t, _CMP_GT_OQ);
  const auto high = _mm512_cmp_ps_mask(reinterpret_cast<__m512>(row[1]), t, _CMP_GT_OQ);
  return (low | high) != 0;
#else
  const auto above = (row[0] > threshold) | (row[1] > threshold);
  bool any = false;
  for (int i = 0; i < kLanes; ++i) any |= above[i] != 0;
  return any;
#endif
}

// The largest of n values, -inf for none. A loop over std::max would stay scalar because of NaN.
inline float largest(const float* z, int64_t n) {
  Vector max = Vector{} - std::numeric_limits<float>::infinity();
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Vector values = *reinterpret_cast<const UnalignedVector*>(z + i);
    max = values > max ? values : max;
  }
  float result = max[0];
  for (int lane = 1; lane < kLanes; ++lane) result = std::max(result, max[lane]);
  for (; i < n; ++i) result = std::max(result, z[i]);
  return result;
}

// Writes the entries of z[0 .. kLanes) above the threshold, and their keys, next to each other, and returns
// their number. It writes whole vectors. Output and input may be the same memory as long as the output does
// not overtake the input.
[[gnu::always_inline]] inline int64_t compress_above(const float* z, const int32_t* keys, float threshold,
                                                     float* z_out, int32_t* keys_out) {
#if defined(__AVX512F__)
  const __m512 values = _mm512_loadu_ps(z);
  const __m512i key = _mm512_loadu_si512(keys);
  const __mmask16 above = _mm512_cmp_ps_mask(values, _mm512_set1_ps(threshold), _CMP_GT_OQ);
  _mm512_storeu_ps(z_out, _mm512_maskz_compress_ps(above, values));
  _mm512_storeu_si512(keys_out, _mm512_maskz_compress_epi32(above, key));
  return __builtin_popcount(above);
#else
  int64_t count = 0;
  for (int i = 0; i < kLanes; ++i) {
    const bool above = z[i] > threshold;
    z_out[count] = z[i];
    keys_out[count] = keys[i];
    count += above ? 1 : 0;
  }
  return count;
#endif
}

// Appends factor times the products above the threshold, and their keys first_key + lane, to z and keys, in
// key order. Both need room for kPanelKeys + kLanes entries. Returns how many were appended.
[[gnu::always_inline]] inline int64_t append_above(const std::array<Vector, 2>& row, float threshold,
                                                   float factor, int32_t first_key, float* z, int32_t* keys) {
  int64_t count = 0;
  alignas(64) int32_t lanes[kLanes];
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < kLanes; ++i) lanes[i] = first_key + half * kLanes + i;
    count +=
        compress_above(reinterpret_cast<const float*>(&row[half]), lanes, threshold, z + count, keys + count);
  }
  for (int64_t i = 0; i < count; ++i) z[i] *= factor;
  return count;
}

}  // namespace splash::cpu_ref::screening
