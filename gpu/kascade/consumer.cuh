#pragma once
// A warpgroup that only computes (sm_90a): it multiplies 64 query rows by tiles of 128 keys, or of 64.

#include "gpu/arch/maximum.cuh"
#include "gpu/arch/mma.cuh"
#include "gpu/arch/warpgroup.cuh"
#include "gpu/arch/wgmma.cuh"
#include "gpu/kascade/producer.cuh"

namespace splash::gpu::kascade {

// Below, kScores are a thread's: half as many as a tile has keys. [4j + e] as wgmma.cuh says.

// Issues s (+)= A B^T over kDim columns as one committed group and does not wait. a: 64 rows of a tile of
// 128; b: a whole tile.
template <class Element, int kDim, int kScores>
__device__ void issue_scores(float (&s)[kScores], uint64_t a, uint64_t b, bool accumulate = false) {
  arch::wgmma_fence();
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    const int panel = step / 4, bytes = step % 4 * 32;
    arch::wgmma<Element>(s, arch::advance(a, panel * kPanelBytes + bytes),
                         arch::advance(b, panel * (2 * kScores * 128) + bytes), accumulate || step > 0);
  }
  arch::wgmma_commit();
}

// o += P V, P as packed pairs.
template <class Element, int kDim, int kSteps>
__device__ void issue_values(float (&o)[kDim / 2], const uint32_t (&p)[kSteps][4], uint64_t v) {
  arch::wgmma_fence();
#pragma unroll
  for (int step = 0; step < kSteps; ++step)
    arch::wgmma<Element, arch::Major::mn>(o, p[step], arch::advance(v, step * 16 * 128), true);
  arch::wgmma_commit();
}

// Probabilities as the next product's left operand: two neighbouring groups of 8 keys a step.
template <class Element, int kScores>
__device__ void pack_probabilities(uint32_t (&p)[kScores / 8][4], const float (&s)[kScores]) {
#pragma unroll
  for (int i = 0; i < kScores / 2; ++i) p[i / 4][i % 4] = arch::pack_pair<Element>(s[2 * i], s[2 * i + 1]);
}

// Sets hidden scores to -inf. Under a negative scale it also flips the sign of the others, so that the scale
// is positive from here on. key_of(column) gives the key of a column of the tile, or one larger than all for
// padding. missing: Problem::missing.
template <int kScores, class P, class KeyOf>
__device__ void mask_scores(float (&s)[kScores], const P& p, const TileAddress& at, int row, KeyOf key_of,
                            int missing = 0) {
  const float sign = p.negative_scale ? -1.0f : 1.0f;
  const int last[2] = {p.last_key(at, p.token_of(at, row)) - missing,
                       p.last_key(at, p.token_of(at, row + 8)) - missing};
#pragma unroll
  for (int j = 0; j < kScores / 4; ++j) {
    const int column = 8 * j + threadIdx.x % 4 * 2, keys[2] = {key_of(column), key_of(column + 1)};
#pragma unroll
    for (int e = 0; e < 4; ++e) s[4 * j + e] = keys[e % 2] <= last[e / 2] ? sign * s[4 * j + e] : -INFINITY;
  }
}

// The consumer warpgroup's number, which the compiler knows to be the same in all lanes: with it descriptors
// stay in uniform registers.
__device__ inline int consumer_group() {
  return __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 128, 0) - 1;
}

// One step of the online softmax for the thread's two rows. `factor` receives what rescales the earlier sums.
// A row with a score of NaN has a sum of NaN from there on. of_quad: makes a row's largest score of the
// thread's.
template <int kScores, class OfQuad>
__device__ void online_softmax(float (&s)[kScores], RowState (&state)[2], float (&factor)[2], float scale,
                               OfQuad of_quad) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float largest = -INFINITY;
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j)
      largest =
          arch::larger_or_nan(largest, arch::larger_or_nan(s[4 * j + 2 * half], s[4 * j + 2 * half + 1]));
    float shift;
    factor[half] = state[half].raise(of_quad(largest), scale, shift);
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j) {
#pragma unroll
      for (int e = 4 * j + 2 * half; e < 4 * j + 2 * half + 2; ++e) {
        s[e] = arch::exp2_approx(fmaf(s[e], scale, -shift));
        sum += s[e];
      }
    }
    state[half].sum = state[half].sum * factor[half] + sum;
  }
}

// A warp has finished its reads of a stage.
__device__ inline void release(uint64_t* empty) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) arch::mbarrier_arrive(empty);
}

// What cp.async wrote becomes visible to wgmma.
__device__ inline void acquire(uint64_t* full, uint32_t parity) {
  arch::mbarrier_wait(full, parity);
  arch::fence_async_proxy();
}

}  // namespace splash::gpu::kascade
