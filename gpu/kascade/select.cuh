#pragma once
// Finds the keys of each list: the tile's own and those with the largest sums, in rising order. A radix
// selection finds the k-th largest, 11 bits per round. One ordered pass then writes all keys with larger sums
// and the first keys with equal sums. Scans by CUB.

#include <cub/block/block_scan.cuh>

#include "gpu/kascade/scores.cuh"

namespace splash::gpu::kascade {

constexpr int kSelectThreads = 512, kDigitBits = 11, kBins = 1 << kDigitBits, kVector = 4;

template <int kThreads>
struct SelectShared {
  using Scan = cub::BlockScan<uint32_t, kThreads, cub::BLOCK_SCAN_WARP_SCANS>;
  typename Scan::TempStorage scan;
  uint32_t histogram[kBins];
  uint32_t digit, wanted;
  uint32_t larger[kThreads / 32], equal[kThreads / 32];  // keys of each warp
};

// The sums of one list, as integers of the same order. Sums are not negative, so their bits have the order of
// their values. A tile's own keys are above all. Below all are keys before the first that is seen: as many
// keys as a list keeps lie above them.
struct ListSums {
  const float* sums;  // 16-byte aligned, in global or shared memory
  int first_key, visible, own_begin;

  // Those of keys first to first + 3, a multiple of 4; of keys that are not seen 0, of others more.
  __device__ void read(int first, uint32_t (&orders)[kVector]) const {
    float4 four{};
    if (first < visible) four = *reinterpret_cast<const float4*>(sums + first);
    const float values[kVector] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const int key = first + i;
      orders[i] = key < first_key || key >= visible ? 0
                  : key >= own_begin                ? 0x7fffffffu
                                                    : __float_as_uint(values[i]) + 1;
    }
  }
};

// The k-th largest. `wanted` becomes the number of sums equal to it that belong to the k.
template <int kThreads>
__device__ uint32_t kth_largest(const ListSums& sums, uint32_t k, SelectShared<kThreads>& shared,
                                uint32_t& wanted) {
  constexpr int kBinsAThread = kBins / kThreads;
  uint32_t prefix = 0, prefix_mask = 0;
  wanted = k;
  for (int shift = 32 - kDigitBits; shift > -kDigitBits; shift -= kDigitBits) {
    const int low = max(shift, 0), bits = shift < 0 ? kDigitBits + shift : kDigitBits;
    for (int i = threadIdx.x; i < kBins; i += kThreads) shared.histogram[i] = 0;
    __syncthreads();
    for (int first = kVector * threadIdx.x; first < sums.visible; first += kVector * kThreads) {
      uint32_t orders[kVector];
      sums.read(first, orders);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (first + i < sums.visible && (orders[i] & prefix_mask) == prefix)
          atomicAdd(&shared.histogram[(orders[i] >> low) & ((1u << bits) - 1)], 1u);
      }
    }
    __syncthreads();
    uint32_t bins[kBinsAThread], above[kBinsAThread];  // from the largest digit down
#pragma unroll
    for (int i = 0; i < kBinsAThread; ++i)
      bins[i] = shared.histogram[kBins - 1 - (static_cast<int>(threadIdx.x) * kBinsAThread + i)];
    typename SelectShared<kThreads>::Scan(shared.scan).ExclusiveSum(bins, above);
#pragma unroll
    for (int i = 0; i < kBinsAThread; ++i) {
      if (above[i] < wanted && wanted <= above[i] + bins[i]) {  // exactly one bin of one thread
        shared.digit = kBins - 1 - (threadIdx.x * kBinsAThread + i);
        shared.wanted = wanted - above[i];
      }
    }
    __syncthreads();
    wanted = shared.wanted;
    prefix |= shared.digit << low;
    prefix_mask |= ((1u << bits) - 1) << low;
    __syncthreads();  // digit, wanted and scan are read before the next round writes them
  }
  return prefix;
}

// A block writes its list of the slab, given its pooled sums. Places behind the last key get kv_len.
template <int kThreads>
__device__ void write_largest(const AnchorSlab& slab, const float* pooled, SelectShared<kThreads>& shared,
                              int32_t* lists) {
  const Problem& p = slab.problem;
  const TileAddress at = p.address((slab.first + blockIdx.x) * p.row_blocks);
  const int first_key = p.first_key(at), visible = slab.visible(at),
            k = min(p.count(at), visible - first_key);
  const ListSums sums{pooled, first_key, visible, p.causal ? p.last_key(at, 0) - p.missing(at) : visible};
  int32_t* const keys = lists + p.list(at) * p.k_keep;
  for (int64_t i = k + static_cast<int>(threadIdx.x); i < p.k_keep; i += kThreads) keys[i] = p.kv_len;
  if (k == 0) return;
  uint32_t wanted = 0;
  const uint32_t threshold = kth_largest(sums, k, shared, wanted);
  // A warp has keys that follow one another: it counts them, and knows its places by those before it.
  constexpr int kWarps = kThreads / 32, kAtOnce = 32 * kVector;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32,
            of_warp = (visible + kWarps * kAtOnce - 1) / (kWarps * kAtOnce) * kAtOnce,
            begin = min(warp * of_warp, visible), end = min(begin + of_warp, visible);
  // Of the thread's keys from `first` on, those with larger sums in the high half, with equal ones in the
  // low.
  uint32_t orders[kVector];
  const auto count = [&](int first) {
    uint32_t counts = 0;
    sums.read(first, orders);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (first + i < end) counts += orders[i] > threshold ? 1u << 16 : orders[i] == threshold ? 1u : 0u;
    }
    return counts;
  };
  uint32_t larger = 0, equal = 0;
  for (int first = begin + kVector * lane; first < end; first += kAtOnce) {
    const uint32_t counts = count(first);
    larger += counts >> 16;
    equal += counts & 0xffff;
  }
  larger = __reduce_add_sync(arch::kAllLanes, larger);
  equal = __reduce_add_sync(arch::kAllLanes, equal);
  if (lane == 0) {
    shared.larger[warp] = larger;
    shared.equal[warp] = equal;
  }
  __syncthreads();
  larger = __reduce_add_sync(arch::kAllLanes, lane < warp ? shared.larger[lane] : 0u);
  equal = __reduce_add_sync(arch::kAllLanes, lane < warp ? shared.equal[lane] : 0u);
  for (int base = begin; base < end; base += kAtOnce) {
    const int first = base + kVector * lane;
    const uint32_t counts = count(first);
    uint32_t up_to = counts;
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      const uint32_t before = __shfl_up_sync(arch::kAllLanes, up_to, lanes);
      if (lane >= lanes) up_to += before;
    }
    uint32_t larger_before = larger + ((up_to - counts) >> 16),
             equal_before = equal + ((up_to - counts) & 0xffff);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (first + i >= end) break;
      const bool is_larger = orders[i] > threshold, is_equal = orders[i] == threshold;
      if (is_larger || (is_equal && equal_before < wanted))
        keys[larger_before + min(equal_before, wanted)] = first + i;
      larger_before += is_larger ? 1 : 0;
      equal_before += is_equal ? 1 : 0;
    }
    const uint32_t all = __shfl_sync(arch::kAllLanes, up_to, 31);
    larger += all >> 16;
    equal += all & 0xffff;
  }
}

// One block per list of the slab.
template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    select_largest(const __grid_constant__ AnchorSlab slab, int32_t* lists) {
  entmax::wait_for_kernels_before();
  __shared__ SelectShared<kThreads> shared;
  write_largest(slab, slab.pooled + blockIdx.x * slab.pitch, shared, lists);
}

}  // namespace splash::gpu::kascade
