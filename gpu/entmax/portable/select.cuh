#pragma once
// Selects the k_keep largest scores of rows that have no list: passes over the keys find the k-th largest
// score, four bits per pass (DigitSearch); among the scores equal to it, the lowest keys are kept.

#include "gpu/entmax/portable/bound.h"
#include "gpu/entmax/portable/tiles.cuh"

namespace splash::gpu::entmax::portable {

using Histograms = uint32_t[kWarpRows][DigitSearch::kBins];  // of a warp's rows

// A score is kept where it is above floor, or equals it and its key is at most last. -inf never is.
struct Kept {
  float floor = -INFINITY;
  int last = -1;

  __device__ __forceinline__ bool operator()(float score, int key) const {
    return score > floor || (score == floor && key <= last);
  }
};

// open: which of the lane's rows to select for. kept stays for the others, and for rows with fewer scores
// than k_keep. All threads of the block call it.
template <class Products>
__device__ __forceinline__ void select_largest(Products& products, Histograms& histograms, int k_keep,
                                               const bool (&open)[2], Kept (&kept)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int rows[2] = {lane / 4, lane / 4 + 8};
  DigitSearch search[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (open[half]) search[half].begin(static_cast<uint32_t>(k_keep));
  }
#pragma unroll 1
  for (int digit = DigitSearch::kDigits - 1; digit >= 0; --digit) {
    if (!__syncthreads_or(search[0].limited || search[1].limited)) return;
    for (int i = lane; i < kWarpRows * DigitSearch::kBins; i += 32)
      histograms[i / DigitSearch::kBins][i % DigitSearch::kBins] = 0;
    __syncwarp();
    products.for_each_tile([&](const Scores& acc, int) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (!search[half].limited) continue;
        for_each_score(acc, half, [&](float score, int) {
          const int bin = score > -INFINITY ? search[half].bin(ordered_bits(score), digit) : -1;
          if (bin >= 0) atomicAdd(&histograms[rows[half]][bin], 1u);  // integer sums have no order
        });
      }
    });
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (search[half].limited) search[half].take(histograms[rows[half]]);
    }
    __syncwarp();  // all have read
  }
  bool some_ties = false;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (!search[half].limited) continue;
    kept[half] = {from_ordered_bits(search[half].prefix), INT_MAX};
    some_ties |= search[half].need < search[half].ties;
  }
  if (!__syncthreads_or(some_ties)) return;
  uint32_t before[2] = {0, 0};  // ties among lower keys
  const int first = 2 * (lane % 4);
  products.for_each_tile([&](const Scores& acc, int first_key) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      unsigned long long ties = 0;  // one bit per key
      for_each_score(acc, half, [&](float score, int in_tile) {
        if (score == kept[half].floor) ties |= 1ull << (in_tile - first);
      });
      ties <<= first;
      ties |= __shfl_xor_sync(kWarp, ties, 1);
      ties |= __shfl_xor_sync(kWarp, ties, 2);
      const uint32_t here = __popcll(ties), need = search[half].need;
      if (search[half].limited && before[half] < need && before[half] + here >= need)
        kept[half].last = first_key + nth_set_bit(ties, static_cast<int>(need - before[half] - 1));
      before[half] += here;
    }
  });
}

}  // namespace splash::gpu::entmax::portable
