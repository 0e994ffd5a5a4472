#pragma once
// Writes new keys and values behind those of each sequence. A token for which the table has no page is
// dropped.

#include "gpu/decode/unit.cuh"
#include "gpu/entmax/schedule/launch.cuh"

namespace splash::gpu::decode {

constexpr int kAppendThreads = 128;

// A thread per 16 bytes of a new key and its value. table.lengths: before the new tokens.
template <class T, int kDim>
__global__ void __launch_bounds__(kAppendThreads)
    append_kernel(const __grid_constant__ Cache cache, const __grid_constant__ PageTable table,
                  const __grid_constant__ RowTensor keys, const __grid_constant__ RowTensor values,
                  int tokens) {
  entmax::wait_for_kernels_before();
  const int64_t index = int64_t{blockIdx.x} * kAppendThreads + static_cast<int>(threadIdx.x);
  const int at = static_cast<int>(index % (kDim / 8)) * 8;
  const int64_t row = index / (kDim / 8);
  const int head = static_cast<int>(row % cache.kv_heads),
            token = static_cast<int>(row / cache.kv_heads % tokens);
  const int sequence = static_cast<int>(row / cache.kv_heads / tokens);
  if (sequence >= table.batch) return;
  const int place = table.lengths[sequence] + token;
  if (place < 0 || place >= table.width * cache.page_size) return;
  const int page = table.pages[sequence * int64_t{table.width} + place / cache.page_size];
  if (page < 0 || page >= cache.pages) return;
  const auto copy = [&](const RowTensor& from, const PagedTensor& to, const float* scale) {
    const auto* source = static_cast<const InProducts<T>*>(from.data) + sequence * from.batch_stride +
                         token * from.query_stride + head * from.head_stride + at;
    T* target = static_cast<T*>(const_cast<void*>(to.data)) + page * to.page_stride +
                place % cache.page_size * to.token_stride + head * to.head_stride + at;
    if constexpr (kIsFp8<T>) {
      *reinterpret_cast<uint2*>(target) = quantized(cache.dtype, entmax::load8(source), scale_or_1(scale));
    } else {
      entmax::store8(target, entmax::load8(source));
    }
  };
  copy(keys, cache.keys, cache.key_scale);
  copy(values, cache.values, cache.value_scale);
}

}  // namespace splash::gpu::decode
