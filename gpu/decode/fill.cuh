#pragma once
// Writes the low-bit copies of pages that have become full: those that end after from_lengths and at or
// before lengths. One block per page and key head.

#include "core/low_bit_page.h"
#include "gpu/decode/unit.cuh"
#include "gpu/entmax/schedule/launch.cuh"

namespace splash::gpu::decode {

constexpr int kFillThreads = 256;

// pages_each: how many pages of a sequence may have become full, at most. from_lengths: null for 0.
template <class T, int kDim>
__global__ void __launch_bounds__(kFillThreads)
    fill_kernel(const __grid_constant__ Cache cache, const __grid_constant__ PageTable table,
                const int32_t* from_lengths, int pages_each) {
  entmax::wait_for_kernels_before();
  __shared__ float lows[kFillThreads / kDim][kDim], highs[kFillThreads / kDim][kDim];
  __shared__ ChannelCode codes[kDim];
  const int thread = static_cast<int>(threadIdx.x);
  const int block = static_cast<int>(blockIdx.x), kv_head = block % cache.kv_heads;
  const int sequence = block / cache.kv_heads / pages_each, ordinal = block / cache.kv_heads % pages_each;
  const int from = from_lengths == nullptr ? 0 : from_lengths[sequence];
  const int place = from / cache.page_size + ordinal;  // in the sequence's table
  if (from < 0 || place >= table.width || (place + 1) * int64_t{cache.page_size} > table.lengths[sequence])
    return;
  const int page = table.pages[sequence * int64_t{table.width} + place];
  if (page < 0 || page >= cache.pages) return;
  const LowBitLayout layout{cache.page_size, kDim, cache.bits};
  const T* keys = static_cast<const T*>(cache.keys.data) + page * cache.keys.page_stride +
                  kv_head * cache.keys.head_stride;
  uint8_t* to = cache.low_bit + (int64_t{page} * cache.kv_heads + kv_head) * int64_t{layout.bytes()};

  // The range of each channel, and how it is stored.
  const int channel = thread % kDim;
  float low = INFINITY, high = -INFINITY;
  for (int key = thread / kDim; key < cache.page_size; key += kFillThreads / kDim) {
    const float value = static_cast<float>(keys[key * cache.keys.token_stride + channel]);
    low = value < low || value != value ? value : low;  // keeps NaN
    high = value > high || value != value ? value : high;
    if (low != low) break;
  }
  lows[thread / kDim][channel] = low;
  highs[thread / kDim][channel] = high;
  __syncthreads();
  bool usable = true;
  if (thread < kDim) {
    for (int i = 1; i < kFillThreads / kDim; ++i) {
      low = lows[i][channel] < low || lows[i][channel] != lows[i][channel] ? lows[i][channel] : low;
      high = highs[i][channel] > high || highs[i][channel] != highs[i][channel] ? highs[i][channel] : high;
    }
    codes[channel] = ChannelCode(low, high, cache.bits, usable);
    reinterpret_cast<uint16_t*>(to)[channel] = half_bits(codes[channel].scale);
    reinterpret_cast<uint16_t*>(to + layout.zeros_at())[channel] = half_bits(codes[channel].zero);
  }
  usable = __syncthreads_or(usable ? 0 : 1) == 0;

  // The codes, a thread per key and eight channels, and the margin of each key.
  constexpr int kGroups = kDim / 8;
  for (int i = thread; i < cache.page_size * kGroups; i += kFillThreads) {
    const int key = i / kGroups, group = i % kGroups;
    const uint4 packed = entmax::load8(keys + key * cache.keys.token_stride + 8 * group);
    const uint32_t pairs[4] = {packed.x, packed.y, packed.z, packed.w};
    MarginSums sums;
    uint32_t words[2] = {};
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const float2 pair = entmax::unpacked<T>(pairs[c / 2]);
      const float value = c % 2 == 0 ? pair.x : pair.y;
      const ChannelCode& of_channel = codes[8 * group + c];
      const int code = of_channel.code(value, cache.bits);
      sums.add(value, of_channel, code);
      if (cache.bits == 4) {
        words[0] |= static_cast<uint32_t>(code + 8) << 4 * nibble_of(c);
      } else {
        words[c / 4] |= static_cast<uint32_t>(code + 128) << 8 * (c % 4);
      }
    }
    auto* at = reinterpret_cast<uint32_t*>(to + layout.group_at(key, group));
    at[0] = words[0];
    if (cache.bits == 8) at[1] = words[1];
#pragma unroll
    for (int lanes = 1; lanes < kGroups; lanes *= 2) {
      sums.residual += __shfl_xor_sync(kAllLanes, sums.residual, lanes);
      sums.deviation += __shfl_xor_sync(kAllLanes, sums.deviation, lanes);
      sums.key += __shfl_xor_sync(kAllLanes, sums.key, lanes);
      sums.zero += __shfl_xor_sync(kAllLanes, sums.zero, lanes);
      sums.scale += __shfl_xor_sync(kAllLanes, sums.scale, lanes);
    }
    if (group == 0)
      reinterpret_cast<uint16_t*>(to + layout.margins_at())[key] =
          bfloat16_above(usable ? sums.margin(kDim, cache.bits) : INFINITY);
  }
}

}  // namespace splash::gpu::decode
