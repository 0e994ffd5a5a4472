#pragma once
// The element types of a cache, T: float16 and bfloat16, which queries and outputs have, too, and Fp8. Bytes
// of Fp8 become float16 in registers, exactly. Queries of either 16-bit type become float16 as well, each row
// times a power of two that brings its largest element into [2^15, 2^16). So elements down to 2^-32 of the
// largest stay exact, and the error of smaller ones is below 2^-40 of it: far below what float32 rounds of a
// score. Entmax::gain undoes the power, and has the keys' scale. Thus one kernel serves queries of both
// types, and neither scale costs anything per key.

#include <cfloat>
#include <cstdint>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "gpu/arch/e4m3.cuh"
#include "gpu/arch/reduce.cuh"
#include "gpu/decode/problem.h"
#include "gpu/entmax/entmax.h"
#include "gpu/entmax/math/vectors.cuh"

namespace splash::gpu::decode {

using arch::kAllLanes;
using Fp8 = __nv_fp8_e4m3;  // float8_e4m3fn

template <class T>
inline constexpr bool kIsFp8 = std::is_same_v<T, Fp8>;

// What products take. Rows of queries and outputs are as wide.
template <class T>
using InProducts = std::conditional_t<kIsFp8<T>, __half, T>;

// Elements of a key that a lane reads at once: 16 bytes.
template <class T>
inline constexpr int kEach = 16 / static_cast<int>(sizeof(T));

// Eight elements of a value.
template <class T>
using Packed8 = std::conditional_t<kIsFp8<T>, uint2, uint4>;

template <class T>
__device__ __forceinline__ Packed8<T> load_value(const T* from) {
  return *reinterpret_cast<const Packed8<T>*>(from);
}

template <class T>
__device__ __forceinline__ void unpack_value(const Packed8<T>& packed, float (&x)[8]) {
  if constexpr (kIsFp8<T>) {
    const uint2 low = arch::halves_of_e4m3(packed.x), high = arch::halves_of_e4m3(packed.y);
    entmax::unpack8<__half>({low.x, low.y, high.x, high.y}, x);
  } else {
    entmax::unpack8<T>(packed, x);
  }
}

template <class T>
__device__ __forceinline__ void add_value(float (&sums)[8], float factor, const Packed8<T>& packed) {
  if constexpr (kIsFp8<T>) {
    const uint2 low = arch::halves_of_e4m3(packed.x), high = arch::halves_of_e4m3(packed.y);
    entmax::add_scaled<__half>(sums, factor, {low.x, low.y, high.x, high.y});
  } else {
    entmax::add_scaled<T>(sums, factor, packed);
  }
}

// Of an Fp8 cache: the factors that its numbers are to be multiplied by.
__device__ __forceinline__ float scale_or_1(const float* scale) {
  return scale == nullptr ? 1.0f : *scale;
}

// Eight channels of an output.
template <class T>
__device__ __forceinline__ void store_output(const Step& p, InProducts<T>* to, const float (&sums)[8]) {
  if constexpr (kIsFp8<T>) {
    const float scale = scale_or_1(p.cache.value_scale);
    float scaled[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) scaled[i] = sums[i] * scale;
    entmax::store8(to, p.cache.dtype == Dtype::bf16 ? entmax::rounded<__nv_bfloat16>(scaled)
                                                    : entmax::rounded<__half>(scaled));
  } else {
    entmax::store8(to, entmax::rounded<T>(sums));
  }
}

// Eight channels of a query beside an Fp8 cache, in float16: the row's kLanes lanes call it together.
// restore: undoes the power of two.
template <int kLanes>
__device__ __forceinline__ uint4 scaled_query(Dtype dtype, const uint4& packed, float& restore) {
  float x[8], largest = 0;
  if (dtype == Dtype::bf16) {
    entmax::unpack8<__nv_bfloat16>(packed, x);
  } else {
    entmax::unpack8<__half>(packed, x);
  }
#pragma unroll
  for (const float channel : x) largest = fmaxf(largest, fabsf(channel));
#pragma unroll
  for (int lanes = 1; lanes < kLanes; lanes *= 2)
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, lanes));
  // Biased exponents. Rows below 2^-63 are not brought so high, and lose less than that says.
  constexpr int kLeast = 64, kInfinity = 255, kOne = 127, kTop = 15;
  const int exponent = min(max(static_cast<int>(__float_as_uint(largest) >> 23), kLeast), kInfinity - 1);
  const float factor = __uint_as_float(static_cast<uint32_t>(2 * kOne + kTop - exponent) << 23);
  restore = __uint_as_float(static_cast<uint32_t>(exponent - kTop) << 23);
#pragma unroll
  for (float& channel : x) channel *= factor;
  return entmax::rounded<__half>(x);
}

// entmax of such a row, whose scores are of scaled queries and stored keys; NaN gain where the keys' scale is
// not what a cache has.
__device__ __forceinline__ void scale_gain(const Step& p, float restore, entmax::Entmax& of_row) {
  const float scale = scale_or_1(p.cache.key_scale), gain = of_row.gain * restore * scale;
  // A gain that is no normal number leaves z at 0.
  const bool is_good = of_row.gain > 0 && scale > 0 && scale < INFINITY;
  of_row.gain = is_good ? fmaxf(gain, FLT_MIN) : NAN;
}

// Eight channels of a new key or value, to be stored in an Fp8 cache: x / scale, to the nearest, 448 at most.
__device__ __forceinline__ uint2 quantized(Dtype dtype, const uint4& packed, float scale) {
  float x[8];
  if (dtype == Dtype::bf16) {
    entmax::unpack8<__nv_bfloat16>(packed, x);
  } else {
    entmax::unpack8<__half>(packed, x);
  }
  uint32_t words[2] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i)
    words[i / 4] |= uint32_t{__nv_cvt_float_to_fp8(x[i] / scale, __NV_SATFINITE, __NV_E4M3)} << 8 * (i % 4);
  return {words[0], words[1]};
}

}  // namespace splash::gpu::decode
