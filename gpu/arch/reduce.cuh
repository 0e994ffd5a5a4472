#pragma once
// Sums and maxima over a warp's lanes and over a quad: four adjacent lanes, which share the rows of an
// mma.sync or wgmma accumulator. Every lane gets the result. The order of additions is fixed.

#include "gpu/arch/maximum.cuh"

namespace splash::gpu::arch {

inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(kAllLanes, x, lanes);
  return x;
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, lanes));
  return x;
}
__device__ __forceinline__ float warp_max_or_nan(float x) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) x = larger_or_nan(x, __shfl_xor_sync(kAllLanes, x, lanes));
  return x;
}

template <class T>
__device__ __forceinline__ T quad_sum(T x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}
__device__ __forceinline__ bool quad_any(bool mine) {
  const unsigned lane = threadIdx.x % 32;
  return (__ballot_sync(kAllLanes, mine) >> (lane & ~3u) & 0xF) != 0;
}
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}

}  // namespace splash::gpu::arch
