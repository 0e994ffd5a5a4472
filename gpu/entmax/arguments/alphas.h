#pragma once
// Alphas that only the device knows, such as learned ones. The host cannot check them without waiting for the
// device, so kernels do: they replace an alpha that attention does not take, and later set the results of its
// heads to NaN. Compiles without nvcc.

#include <array>
#include <cstdint>

#include "gpu/engine/memory.h"

namespace splash::gpu::entmax {

// Enqueues taken = alpha, with 1.5 in place of each alpha that attention does not take (attention_takes in
// entmax.h). alpha, taken: [count] in device memory. Throws DeviceError where the launch fails.
void take_alphas(const float* alpha, int count, float* taken, StreamHandle stream);

// A result of attention, [batch, heads, ...], contiguous. heads: q_heads or kv_heads. Where data is null,
// there is none.
struct HeadResult {
  void* data = nullptr;
  int64_t heads = 0, head_bytes = 0;  // head_bytes: of one head of one batch entry, a multiple of 4
};

// Enqueues writing NaN, in any dtype, to the results' heads whose alpha take_alphas replaced; a key head is
// written where any query head of its group was. alpha: [count], 1 or q_heads. Throws InvalidArgument where
// heads do not divide q_heads or head_bytes is no multiple of 4; DeviceError where the launch fails.
void refuse_heads(const float* alpha, int count, int64_t batch, int64_t q_heads,
                  const std::array<HeadResult, 4>& results, StreamHandle stream);

}  // namespace splash::gpu::entmax
