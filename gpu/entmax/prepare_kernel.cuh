#pragma once
// Before the screen, for each kErrorKeys keys: the keys in float16, how far products of theirs may be off
// (prepare.h), and a copy of those with the largest norms, which are sampled first (pick.h).

#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "gpu/arch/maximum.cuh"
#include "gpu/arch/wgmma_f16.cuh"
#include "gpu/engine/round.h"
#include "gpu/entmax/launch.cuh"
#include "gpu/entmax/pick.h"
#include "gpu/entmax/vectors.cuh"
#include "gpu/entmax/weights.cuh"

namespace splash::gpu::entmax {

constexpr int kPrepareThreads = 256, kPrepareWarps = kPrepareThreads / 32;
constexpr float kMostNorm = 4000;  // times |q'| < 16: below float16's largest, 65504
constexpr int kSinks = 4;          // the first keys of a head, which are picked whatever their norm

// Ranks the block's keys: 0 for the one that `order` has largest, and so on. order: different for each key.
__device__ __forceinline__ void rank_keys(const uint32_t (&order)[kErrorKeys], int (&rank)[kErrorKeys]) {
  constexpr int kEach = kPrepareThreads / kErrorKeys;  // threads a key
  const int thread = static_cast<int>(threadIdx.x), key = thread / kEach, part = thread % kEach;
  const uint32_t own = order[key];
  int larger = 0;
#pragma unroll
  for (int i = 0; i < kErrorKeys / kEach; i += 4) {
    const uint4 four = *reinterpret_cast<const uint4*>(order + kErrorKeys / kEach * part + i);
    larger +=
        (four.x > own ? 1 : 0) + (four.y > own ? 1 : 0) + (four.z > own ? 1 : 0) + (four.w > own ? 1 : 0);
  }
#pragma unroll
  for (int lanes = 1; lanes < kEach; lanes *= 2) larger += __shfl_xor_sync(kWarp, larger, lanes);
  if (part == 0) rank[key] = larger;
}

// One block for kErrorKeys keys of a head; kLanes lanes a key, each 8 dimensions.
template <class T, int kLanes>
__global__ void __launch_bounds__(kPrepareThreads) prepare_kernel(const __grid_constant__ Problem p) {
  wait_for_kernels_before();
  // Static: one for all, also in gpu/tests/simt.
  static __shared__ float largest_of[kPrepareWarps][kLanes];
  alignas(16) static __shared__ uint32_t order[kErrorKeys];
  static __shared__ int rank[kErrorKeys];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kLanes, column = 8 * lane;
  const int head = static_cast<int>(blockIdx.y), first = static_cast<int>(blockIdx.x) * kErrorKeys;
  const int64_t from = int64_t{head} * p.kv_len * p.head_dim + column;
  constexpr int kAtOnce = kPrepareThreads / kLanes;
  const bool picks = p.segment > 0 && first / p.segment < p.kv_len / p.segment;  // of whole segments
  uint4 half_keys[kErrorKeys / kAtOnce];
  float largest = 0;  // of the keys' squares, summed over the dimensions up to this lane's
#pragma unroll
  for (int i = 0; i < kErrorKeys / kAtOnce; ++i) {
    const int in_block = i * kAtOnce + thread / kLanes, key = first + in_block;
    const bool there = key < p.kv_len && column < p.head_dim;
    const int64_t at = from + int64_t{key} * p.head_dim;
    const uint4 packed = there ? load8(static_cast<const T*>(p.k) + at) : uint4{};
    float squares = dot8<T>(packed, packed);
#pragma unroll
    for (int lanes = 1; lanes < kLanes; lanes *= 2) {
      const float before = __shfl_up_sync(kWarp, squares, lanes, kLanes);
      if (lane >= lanes) squares += before;
    }
    largest = arch::larger_or_nan(largest, squares);
    if (picks && lane == kLanes - 1) {  // squares are not negative: their bits rise with them
      const uint32_t bits = key < kSinks ? 0x7FFFFFFF : __float_as_uint(squares) & 0x7FFFFFFF;
      order[in_block] = (bits & ~uint32_t{kErrorKeys - 1}) + (kErrorKeys - 1 - in_block);
    }
    half_keys[i] = packed;
    if constexpr (!std::is_same_v<T, __half>) {
      const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
      float x[8];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 pair = unpacked<T>(words[j]);
        x[2 * j] = pair.x;
        x[2 * j + 1] = pair.y;
      }
      half_keys[i] = rounded<__half>(x);
      if (there) store8(static_cast<__half*>(p.half_keys) + at, half_keys[i]);
    }
  }
#pragma unroll
  for (int lanes = kLanes; lanes < 32; lanes *= 2)
    largest = arch::larger_or_nan(largest, __shfl_xor_sync(kWarp, largest, lanes));
  if (thread % 32 < kLanes) largest_of[thread / 32][lane] = largest;
  __syncthreads();
  if (picks) {
    rank_keys(order, rank);
    __syncthreads();
    const int share = picks_of_block(p.picks, p.segment);  // kSinks at least
    auto* const picked =
        static_cast<__half*>(p.picked) +
        (int64_t{head} * (p.kv_len / p.segment) * p.picks + int64_t{blockIdx.x} * share) * p.head_dim +
        column;
#pragma unroll
    for (int i = 0; i < kErrorKeys / kAtOnce; ++i) {
      const int of_key = rank[i * kAtOnce + thread / kLanes];
      if (of_key < share && column < p.head_dim) store8(picked + int64_t{of_key} * p.head_dim, half_keys[i]);
    }
  }
  if (thread >= 32) return;
  for (const auto& of_warp : largest_of) largest = arch::larger_or_nan(largest, of_warp[lane]);
  const float norm = 1.0001f * sqrtf(largest), of_key = __shfl_sync(kWarp, norm, kLanes - 1);
  // Two lanes a step; the last step does not count.
  float sum = lane % 2 == 1 && column + 8 < p.head_dim ? norm : 0;
#pragma unroll
  for (int lanes = 1; lanes < kLanes; lanes *= 2) sum += __shfl_xor_sync(kWarp, sum, lanes);
  if (thread == 0) {
    p.errors[head * ceil_div(p.kv_len, kErrorKeys) + blockIdx.x] =
        of_key <= kMostNorm ? 1.01f * arch::kHalfStepError * sum + 0x1p-18f * (of_key + 1) : INFINITY;
  }
}

}  // namespace splash::gpu::entmax
