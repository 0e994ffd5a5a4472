#pragma once
// Before the screen: of each segment of keys those with the largest norms (pick.h).

#include "gpu/entmax/launch.cuh"
#include "gpu/entmax/vectors.cuh"
#include "gpu/entmax/weights.cuh"

namespace splash::gpu::entmax {

constexpr int kPickThreads = 128;
// Halvings that find the least norm that is picked; what then lies within a thousandth of all counts alike.
constexpr int kSteps = 10;
constexpr int kSinks = 4;  // the first keys of a head, which are picked whatever their norm

// One block a segment of kSegment keys of a head: kPicks of them, rising.
template <int kSegment, int kPicks>
__global__ void __launch_bounds__(kPickThreads) pick_kernel(const __grid_constant__ Problem p) {
  wait_for_kernels_before();
  static __shared__ int keys[kPicks];  // static: one for all, also in gpu/tests/simt
  const int thread = static_cast<int>(threadIdx.x), head = static_cast<int>(blockIdx.y);
  const int first = static_cast<int>(blockIdx.x) * kSegment;
  if (thread < 32) {
    constexpr int kEach = kSegment / 32;
    uint32_t ranks[kEach];  // squares are not negative: their bits rise with them
    uint32_t largest = 0, least = UINT32_MAX;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      ranks[i] = __float_as_uint(p.squares[int64_t{head} * p.kv_len + first + 32 * i + thread]) & 0x7FFFFFFF;
      largest = max(largest, ranks[i]);
      least = min(least, ranks[i]);
    }
    largest = __reduce_max_sync(kWarp, largest);
    least = __reduce_min_sync(kWarp, least);
    if (first == 0 && thread < kSinks) ranks[0] = largest;
    // kPicks keys reach `least`, but not `above`.
    uint32_t above = largest + 1;
#pragma unroll 1
    for (int step = 0; step < kSteps && above - least > 1; ++step) {
      const uint32_t middle = least + (above - least) / 2;
      int reach = 0;
#pragma unroll
      for (const uint32_t rank : ranks) reach += rank >= middle ? 1 : 0;
      (__reduce_add_sync(kWarp, reach) >= kPicks ? least : above) = middle;
    }
    // All that lie above it, and of those between the last ones.
    const uint32_t before = (1u << thread) - 1;
    int left = kPicks;  // of those between
#pragma unroll
    for (const uint32_t rank : ranks) left -= __popc(__ballot_sync(kWarp, rank >= above));
    int end = kPicks;
#pragma unroll
    for (int i = kEach - 1; i >= 0; --i) {
      const unsigned sure = __ballot_sync(kWarp, ranks[i] >= above);
      const unsigned maybe = __ballot_sync(kWarp, ranks[i] >= least && ranks[i] < above);
      unsigned picked = sure;
      for (unsigned rest = maybe; rest != 0 && left > 0; rest &= rest - 1, --left)
        picked |= rest & (0 - rest);
      end -= __popc(picked);
      if ((picked >> thread & 1) != 0) keys[end + __popc(picked & before)] = first + 32 * i + thread;
    }
  }
  __syncthreads();
  const auto* const from = static_cast<const uint16_t*>(p.half_keys != nullptr ? p.half_keys : p.k) +
                           int64_t{head} * p.kv_len * p.head_dim;
  auto* const to =
      static_cast<uint16_t*>(p.picked) + (int64_t{head} * gridDim.x + blockIdx.x) * kPicks * p.head_dim;
  const int chunks = p.head_dim / 8;
#pragma unroll 4
  for (int i = thread; i < kPicks * chunks; i += kPickThreads)
    store8(to + 8 * i, load8(from + int64_t{keys[i / chunks]} * p.head_dim + 8 * (i % chunks)));
}

}  // namespace splash::gpu::entmax
