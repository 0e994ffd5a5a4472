#pragma once
// Writes keys in 8 bits with a scale each, from keys in 16 bits. Sixteen lanes share a key, eight numbers
// each; or thirty-two, where head_dim is more than 128.

#include "gpu/arch/maximum.cuh"
#include "gpu/arch/reduce.cuh"
#include "gpu/kascade/problem.cuh"

namespace splash::gpu::kascade {

constexpr int kQuantizeThreads = 256, kLaneNumbers = 8;

struct KeysIn8Bits {
  const void* k = nullptr;                              // [heads, kv_len, head_dim], in 16 bits
  int8_t* codes = nullptr;                              // [heads, pitch, head_dim]
  float* scales = nullptr;                              // [heads, pitch]
  int64_t heads = 0, kv_len = 0, pitch = 0, begin = 0;  // the first key that is written; kv_len ends them
  int head_dim = 0;
};

template <class Element, int kKeyLanes>
__global__ void __launch_bounds__(kQuantizeThreads) quantize(const KeysIn8Bits to) {
  entmax::wait_for_kernels_before();
  const int lane = threadIdx.x % kKeyLanes, column = kLaneNumbers * lane;
  const int64_t key =
      to.begin + int64_t{blockIdx.x} * (kQuantizeThreads / kKeyLanes) + threadIdx.x / kKeyLanes;
  const bool mine = key < to.kv_len && column < to.head_dim;
  for (int64_t head = blockIdx.y; head < to.heads; head += gridDim.y) {
    float numbers[kLaneNumbers] = {}, largest = 0;
    if (mine) {
      const auto* const from = static_cast<const Element*>(to.k) + (head * to.kv_len + key) * to.head_dim;
      const uint4 eight = *reinterpret_cast<const uint4*>(from + column);
      const auto* const elements = reinterpret_cast<const Element*>(&eight);
#pragma unroll
      for (int i = 0; i < kLaneNumbers; ++i) {
        numbers[i] = static_cast<float>(elements[i]);
        largest = arch::larger_or_nan(largest, fabsf(numbers[i]));
      }
    }
#pragma unroll
    for (int lanes = 1; lanes < kKeyLanes; lanes *= 2)
      largest = arch::larger_or_nan(largest, __shfl_xor_sync(arch::kAllLanes, largest, lanes));
    const float scale = largest < INFINITY ? __fdiv_rn(largest, 127.0f) : NAN;
    if (!mine) continue;
    uint32_t codes[2] = {};
#pragma unroll
    for (int i = 0; i < kLaneNumbers; ++i) {
      const int code = scale > 0 ? max(-127, min(127, __float2int_rn(__fdiv_rn(numbers[i], scale)))) : 0;
      codes[i / 4] |= (static_cast<uint32_t>(code) & 0xFF) << (8 * (i % 4));
    }
    const int64_t place = head * to.pitch + key;
    *reinterpret_cast<uint2*>(to.codes + place * to.head_dim + column) = {codes[0], codes[1]};
    if (lane == 0) to.scales[place] = scale;
  }
}

}  // namespace splash::gpu::kascade
