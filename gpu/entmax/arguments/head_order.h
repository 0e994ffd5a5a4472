#pragma once
// A tensor of heads, copied from one order to another: models have [batch, rows, heads, head_dim] in memory,
// the kernels take [batch, heads, rows, head_dim]. On the way each head may be multiplied by a factor.
// Compiles without nvcc.

#include <cstdint>

#include "core/dtype.h"
#include "core/round.h"
#include "gpu/engine/memory.h"

namespace splash::gpu::entmax {

constexpr int kOrderThreads = 256, kOrderPieces = 4;  // of a block, and of a thread
constexpr int kPieceElements = 8;                     // 16 bytes
constexpr int64_t kMostOrderedHeads = 65535;          // of all batch entries

// Rows of head_dim neighbouring elements, and how many elements lie between two batch entries, heads and
// rows.
template <class Element>
struct HeadRows {
  Element* data = nullptr;
  int64_t batch = 0, head = 0, row = 0;
};

struct HeadOrder {
  HeadRows<const void> from;
  HeadRows<void> to;
  int batch = 0, heads = 0, rows = 0, head_dim = 0;
  const float* factors = nullptr;  // null: none. In device memory, [factor_count]: 1 or heads
  int factor_count = 0;
  HeadRows<const void> beside{};  // null: none. Else sums receives sums of from · beside, before factors
  float* sums = nullptr;  // [heads, batch, sums_per_head(rows, head_dim)], which add up to each head's
};

// Partial sums of one head of one batch entry.
inline int64_t sums_per_head(int64_t rows, int64_t head_dim) {
  return ceil_div(rows * (head_dim / kPieceElements), int64_t{kOrderPieces * kOrderThreads});
}

// Enqueues to = from · factor, computed in float and rounded once to dtype, and the sums. dtype: f16 or bf16.
// Addresses and distances are multiples of 16 bytes. The same bits in every run. Throws InvalidArgument where
// dtype, an extent, an address or a distance is not so; DeviceError where the launch fails.
void reorder_heads(const HeadOrder& order, Dtype dtype, StreamHandle stream);

}  // namespace splash::gpu::entmax
