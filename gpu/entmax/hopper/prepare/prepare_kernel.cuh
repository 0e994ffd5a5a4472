#pragma once
// The kernel that prepares the keys (prepare.h): for each kErrorKeys keys their float16 copies, their error
// bound, and copies of those with the largest norms (high_norm.h).

#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/round.h"
#include "gpu/arch/maximum.cuh"
#include "gpu/arch/wgmma_f16.cuh"
#include "gpu/entmax/hopper/prepare/high_norm.h"
#include "gpu/entmax/math/arithmetic.cuh"
#include "gpu/entmax/math/vectors.cuh"
#include "gpu/entmax/schedule/launch.cuh"
#include "gpu/entmax/support/store_header.h"

namespace splash::gpu::entmax::hopper {

constexpr int kPrepareThreads = 256, kPrepareWarps = kPrepareThreads / 32;
constexpr float kMostNorm = 4000;  // times |q'| < 16: below float16's largest, 65504
constexpr int kSinks = 4;          // the first keys of a head, chosen whatever their norms

// Ranks the block's keys by `order`, 0 for the largest. No two keys have the same order.
__device__ __forceinline__ void rank_keys(const uint32_t (&order)[kErrorKeys], int (&rank)[kErrorKeys]) {
  constexpr int kEach = kPrepareThreads / kErrorKeys;  // threads per key
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

// One block per kErrorKeys keys of a head, from first_block on; kLanes lanes per key, 8 dimensions each.
template <class T, int kLanes>
__global__ void __launch_bounds__(kPrepareThreads)
    prepare_kernel(const __grid_constant__ ForwardProblem p, const StoreBegin begin = {}) {
  wait_for_kernels_before();
  if (begin.header != nullptr && blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0)
    *begin.header = begin.value;
  // Static, so that all threads share it in gpu/tests/simt, too.
  static __shared__ float largest_of[kPrepareWarps][kLanes];
  alignas(16) static __shared__ uint32_t order[kErrorKeys];
  static __shared__ int rank[kErrorKeys];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kLanes, column = 8 * lane;
  const int head = static_cast<int>(blockIdx.y), block = static_cast<int>(blockIdx.x) + p.first_block,
            first = block * kErrorKeys;
  const int64_t from = int64_t{head} * p.kv_len * p.head_dim + column;
  constexpr int kAtOnce = kPrepareThreads / kLanes;
  const bool selects =
      p.segment > 0 &&
      first / p.segment < p.kv_len / p.segment;  // the keys behind the last whole segment are not chosen from
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
    if (selects && lane == kLanes - 1) {  // squares are not negative, so their bits are in their order
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
  __syncthreads();  // norms and largest_of of all
  if (selects) {
    rank_keys(order, rank);
    __syncthreads();  // ranks; selects is the block's, so all threads are here
    const int share = high_norm_per_block(p.high_norm_per_segment, p.segment);  // at least kSinks
    auto* const high_norm =
        static_cast<__half*>(p.high_norm_keys) +
        (int64_t{head} * (p.kv_len / p.segment) * p.high_norm_per_segment + int64_t{block} * share) *
            p.head_dim +
        column;
#pragma unroll
    for (int i = 0; i < kErrorKeys / kAtOnce; ++i) {
      const int key_rank = rank[i * kAtOnce + thread / kLanes];
      if (key_rank < share && column < p.head_dim)
        store8(high_norm + int64_t{key_rank} * p.head_dim, half_keys[i]);
    }
  }
  if (blockIdx.x == 0 && head == 0) {
    for (int slot = thread; slot < p.spill.count; slot += kPrepareThreads) p.spill.taken[slot] = 0;
  }
  if (thread >= 32) return;
  for (const auto& warp_largest : largest_of) largest = arch::larger_or_nan(largest, warp_largest[lane]);
  const float norm = 1.0001f * sqrtf(largest), key_norm = __shfl_sync(kWarp, norm, kLanes - 1);
  // Two lanes per step; the last step's rounding does not count.
  float sum = lane % 2 == 1 && column + 8 < p.head_dim ? norm : 0;
#pragma unroll
  for (int lanes = 1; lanes < kLanes; lanes *= 2) sum += __shfl_xor_sync(kWarp, sum, lanes);
  if (thread == 0) {
    p.errors[head * ceil_div(p.kv_len, kErrorKeys) + block] =
        key_norm <= kMostNorm ? 1.01f * arch::kHalfStepError * sum + 0x1p-18f * (key_norm + 1) : INFINITY;
  }
}

}  // namespace splash::gpu::entmax::hopper
