#pragma once
// Finds the keys of each list: the tile's own and those with the largest sums, in rising order. A radix
// selection finds the k-th largest, 11 bits per round. One ordered pass then writes all keys with larger sums
// and the first keys with equal sums. Scans by CUB.
//
// A list belongs to a block, or in parts to the blocks of a cluster: each counts its own keys, and all add up
// everyone's counts.

#include <cub/block/block_scan.cuh>

#include "gpu/arch/cluster.cuh"
#include "gpu/kascade/kascade.h"
#include "gpu/kascade/scores.cuh"

namespace splash::gpu::kascade {

constexpr int kSelectThreads = 512, kDigitBits = 11, kBins = 1 << kDigitBits, kVector = 4;

struct SelectShared {
  using Scan = cub::BlockScan<uint32_t, kSelectThreads, cub::BLOCK_SCAN_WARP_SCANS>;
  Scan::TempStorage scan;
  alignas(16) uint32_t histograms[2][kBins];  // of rounds in turns
  uint32_t digit, wanted, there;
  uint32_t counts[2][kSelectThreads / 32];  // keys of each warp with larger and with equal sums
  uint32_t all[2];                          // of the block
};

// The blocks that share a list.
struct ListBlocks {
  int rank = 0, size = 1;

  static __device__ ListBlocks of_cluster() { return {arch::cluster_rank(), arch::cluster_size()}; }

  // Afterwards each thread sees what any of them wrote before.
  __device__ void sync() const {
    if (size > 1) return arch::cluster_sync();
    __syncthreads();
  }
  // What is at `mine` in another block.
  template <class T>
  __device__ T read(const T* mine, int block) const {
    T value = *mine;
    if (size > 1) arch::load_remote(arch::remote_address(mine, block), value);
    return value;
  }
};

// A list's keys, those among them that this block has, and which of them come first: the tile's own, then by
// their sums. As integers: sums are not negative, so their bits have the order of their values. Below all are
// keys before the first that is seen: as many keys as a list keeps lie above them.
struct ListKeys {
  int first_key, visible, own_begin;
  int begin, end;  // of the block; begin is a multiple of 16

  __device__ ListKeys(const AnchorSlab& slab, const TileAddress& at, const ListBlocks& blocks)
      : first_key(slab.problem.first_key(at)),
        visible(slab.visible(at)),
        own_begin(slab.problem.causal ? slab.problem.last_key(at, 0) - slab.problem.missing(at) : visible) {
    const int each = keys_of_block(visible, blocks.size);
    begin = min(blocks.rank * each, visible);
    end = min(begin + each, visible);
  }

  // Of keys that follow one another.
  template <int kKeys>
  __device__ void find_orders(int key, const float (&sums)[kKeys], uint32_t (&orders)[kKeys]) const {
    const bool ordinary = key >= first_key && key + kKeys <= min(own_begin, visible);
#pragma unroll
    for (int i = 0; i < kKeys; ++i) orders[i] = __float_as_uint(sums[i]) + 1;
    if (ordinary) return;
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      if (key + i >= own_begin) orders[i] = 0x7fffffffu;
      if (key + i < first_key || key + i >= visible) orders[i] = 0;
    }
  }

  // So many that each begins at a multiple of 16. blocks: a power of two.
  static __host__ __device__ int keys_of_block(int keys, int blocks) {
    int each = (keys + kKeyGroup - 1) / kKeyGroup;  // groups of 16
    for (; blocks > 1; blocks /= 2) each = (each + 1) / 2;
    return each * kKeyGroup;
  }
};

// Orders from the list's sums. Those behind the last key are 0.
struct OrdersOfSums {
  const ListKeys& keys;
  const float* sums;  // of the list's first key on, 16-byte aligned

  __device__ uint32_t read(int key) const {
    uint32_t order[1];
    const float sum[1] = {key < keys.visible ? sums[key] : 0.0f};
    keys.find_orders(key, sum, order);
    return order[0];
  }
  // Of keys first to first + 3, a multiple of 4.
  __device__ void read(int first, uint32_t (&orders)[kVector]) const {
    float4 four{};
    if (first < keys.visible) four = *reinterpret_cast<const float4*>(sums + first);
    const float values[kVector] = {four.x, four.y, four.z, four.w};
    keys.find_orders(first, values, orders);
  }
};

// The same, as they are kept in shared memory, of the block's first key on.
struct KeptOrders {
  const ListKeys& keys;
  const uint32_t* kept;

  __device__ uint32_t read(int key) const { return key < keys.end ? kept[key - keys.begin] : 0; }
  __device__ void read(int first, uint32_t (&orders)[kVector]) const {
    uint4 four{};
    if (first < keys.end) four = *reinterpret_cast<const uint4*>(kept + first - keys.begin);
    orders[0] = four.x, orders[1] = four.y, orders[2] = four.z, orders[3] = four.w;
  }
};

constexpr int kFirstShift = 32 - kDigitBits;  // of the first round's digit

__device__ inline void clear_histogram(uint32_t (&histogram)[kBins]) {
  for (int i = threadIdx.x; i < kBins; i += kSelectThreads) histogram[i] = 0;
}

// What a list keeps: all keys with larger orders, and the first with this order.
struct Threshold {
  uint32_t order, equal;
};

// Of the k largest. kCounted: the first histogram has the first digits of the block's keys. Keys that are not
// seen, whose orders are 0, may be counted or not: k others lie above them.
template <bool kCounted, class Orders>
__device__ Threshold find_threshold(const Orders& from, uint32_t k, const ListBlocks& blocks,
                                    SelectShared& shared) {
  constexpr int kBinsAThread = kBins / kSelectThreads;
  static_assert(kBinsAThread == 4);  // are read at once
  uint32_t prefix = 0, prefix_mask = 0, wanted = k;
  if (!kCounted) clear_histogram(shared.histograms[0]);
  for (int round = 0; round * kDigitBits < 32; ++round) {
    const int shift = kFirstShift - round * kDigitBits, low = max(shift, 0),
              bits = shift < 0 ? kDigitBits + shift : kDigitBits;
    uint32_t(&histogram)[kBins] = shared.histograms[round % 2];
    if (!kCounted || round > 0) {
      __syncthreads();
      for (int first = from.keys.begin + kVector * static_cast<int>(threadIdx.x); first < from.keys.end;
           first += kVector * kSelectThreads) {
        uint32_t orders[kVector];
        from.read(first, orders);
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          if ((orders[i] & prefix_mask) == prefix)
            atomicAdd(&histogram[(orders[i] >> low) & ((1u << bits) - 1)], 1u);
        }
      }
    }
    blocks.sync();  // all have counted, and read what they counted the round before
    clear_histogram(shared.histograms[(round + 1) % 2]);
    uint32_t bins[kBinsAThread] = {}, above[kBinsAThread];  // from the largest digit down
    const int last = kBins - 1 - kBinsAThread * static_cast<int>(threadIdx.x);
#pragma unroll 4
    for (int block = 0; block < blocks.size; ++block) {
      const uint4 four = blocks.read(reinterpret_cast<const uint4*>(&histogram[last - 3]), block);
      bins[0] += four.w, bins[1] += four.z, bins[2] += four.y, bins[3] += four.x;
    }
    SelectShared::Scan(shared.scan).ExclusiveSum(bins, above);
#pragma unroll
    for (int i = 0; i < kBinsAThread; ++i) {
      if (above[i] < wanted && wanted <= above[i] + bins[i]) {  // exactly one bin of one thread
        shared.digit = last - i;
        shared.wanted = wanted - above[i];
        shared.there = bins[i];
      }
    }
    __syncthreads();
    wanted = shared.wanted;
    prefix |= shared.digit << low;
    prefix_mask |= ((1u << bits) - 1) << low;
    if (wanted == shared.there) return {max(prefix, 1u) - 1, 0};  // all with this prefix
  }
  return {prefix, wanted};
}

// Writes the block's keys that are above the threshold, in rising order, behind those of the blocks before. A
// warp has keys that follow one another: it counts them, and knows its places by those before it.
template <bool kTies, class Orders>
__device__ void write_keys(const Orders& from, const Threshold& threshold, const ListBlocks& blocks,
                           SelectShared& shared, int32_t* keys) {
  constexpr int kWarps = kSelectThreads / 32, kAtOnce = 32 * kVector, kKinds = kTies ? 2 : 1;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32,
            of_warp = (from.keys.end - from.keys.begin + kWarps * kAtOnce - 1) / (kWarps * kAtOnce) * kAtOnce,
            begin = min(from.keys.begin + warp * of_warp, from.keys.end),
            end = min(begin + of_warp, from.keys.end);
  uint32_t found[2] = {};  // with larger orders, and equal ones; first the thread's, then all before the warp
  for (int first = begin + kVector * lane; first < end; first += kAtOnce) {
    uint32_t orders[kVector];
    from.read(first, orders);
#pragma unroll
    for (const uint32_t order : orders) {
      if (order > threshold.order) ++found[0];
      if (kTies && order == threshold.order) ++found[1];
    }
  }
#pragma unroll
  for (int i = 0; i < kKinds; ++i) {
    found[i] = __reduce_add_sync(arch::kAllLanes, found[i]);
    if (lane == 0) shared.counts[i][warp] = found[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kKinds; ++i) {
    const uint32_t of_lane = lane < kWarps ? shared.counts[i][lane] : 0;
    found[i] = __reduce_add_sync(arch::kAllLanes, lane < warp ? of_lane : 0u);
    const uint32_t all = __reduce_add_sync(arch::kAllLanes, of_lane);
    if (threadIdx.x == 0) shared.all[i] = all;
  }
  if (blocks.size > 1) {
    blocks.sync();
#pragma unroll
    for (int i = 0; i < kKinds; ++i) {
      for (int block = 0; block < blocks.rank; ++block) found[i] += blocks.read(&shared.all[i], block);
    }
  }
  const uint32_t lanes_before = (1u << lane) - 1;
  for (int base = begin; base < end; base += kAtOnce) {
    uint32_t orders[kVector];  // of each 32nd key
#pragma unroll
    for (int i = 0; i < kVector; ++i) orders[i] = from.read(base + 32 * i + lane);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const bool is_larger = orders[i] > threshold.order, is_equal = kTies && orders[i] == threshold.order;
      const uint32_t larger = __ballot_sync(arch::kAllLanes, is_larger),
                     equal = kTies ? __ballot_sync(arch::kAllLanes, is_equal) : 0,
                     equal_before = found[1] + __popc(equal & lanes_before);
      if (is_larger || (is_equal && equal_before < threshold.equal))
        keys[found[0] + __popc(larger & lanes_before) + (kTies ? min(equal_before, threshold.equal) : 0)] =
            base + 32 * i + lane;
      found[0] += __popc(larger);
      found[1] += __popc(equal);
    }
  }
  if (blocks.size > 1) blocks.sync();  // no block ends before all have read its counts
}

// The blocks of a list write it. Places behind the last key get kv_len.
template <bool kCounted, class Orders>
__device__ void write_largest(const AnchorSlab& slab, const TileAddress& at, const Orders& from,
                              const ListBlocks& blocks, SelectShared& shared, int32_t* lists) {
  const Problem& p = slab.problem;
  const int k = min(p.count(at), from.keys.visible - from.keys.first_key);
  int32_t* const keys = lists + p.list(at) * p.k_keep;
  for (int64_t i = k + blocks.rank * kSelectThreads + static_cast<int>(threadIdx.x); i < p.k_keep;
       i += kSelectThreads * blocks.size)
    keys[i] = p.kv_len;
  if (k <= 0) return;
  const Threshold threshold = find_threshold<kCounted>(from, k, blocks, shared);
  if (threshold.equal == 0) {
    write_keys<false>(from, threshold, blocks, shared, keys);
  } else {
    write_keys<true>(from, threshold, blocks, shared, keys);
  }
}

// One block per list of the slab.
static __global__ void __launch_bounds__(kSelectThreads)
    select_largest(const __grid_constant__ AnchorSlab slab, int32_t* lists) {
  entmax::wait_for_kernels_before();
  __shared__ SelectShared shared;
  const TileAddress at = slab.address_of(blockIdx.x);
  const ListBlocks alone;
  const ListKeys keys(slab, at, alone);
  write_largest<false>(slab, at, OrdersOfSums{keys, slab.pooled + blockIdx.x * slab.pitch}, alone, shared,
                       lists);
}

}  // namespace splash::gpu::kascade
