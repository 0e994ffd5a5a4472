#pragma once
// Alphas that only the device knows, such as learned ones: reading them on the host would wait for the
// device. Compiles without nvcc.

#include <array>
#include <cstdint>

#include "gpu/engine/memory.h"

namespace splash::gpu::entmax {

// What the attention's kernels take: 1.5 in place of an alpha that they do not (entmax.h's attention_takes).
// alpha, taken: [count].
void take_alphas(const float* alpha, int count, float* taken, StreamHandle stream);

// A result of attention, [batch, heads, ...], contiguous; heads: the query heads, or the keys' heads. None
// where data is null.
struct HeadResult {
  void* data = nullptr;
  int64_t heads = 0, head_bytes = 0;  // head_bytes: of one head of one batch entry, a multiple of 4
};

// NaN, in any dtype, for the heads whose alpha take_alphas replaced; a keys' head has those of all of its
// group. alpha: [count], 1 or q_heads. Throws InvalidArgument where heads do not divide q_heads or bytes are
// no multiple of 4.
void refuse_heads(const float* alpha, int count, int64_t batch, int64_t q_heads,
                  const std::array<HeadResult, 4>& results, StreamHandle stream);

}  // namespace splash::gpu::entmax
