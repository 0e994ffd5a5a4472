#pragma once
// The kernel of head_order.h. Memory bounds it: each element is read once and written once.

#include "gpu/arch/reduce.cuh"
#include "gpu/entmax/arguments/head_order.h"
#include "gpu/entmax/math/vectors.cuh"

namespace splash::gpu::entmax {

// A thread's pieces are in flight together. blockIdx.x: a part of a head's pieces. blockIdx.y: a head of a
// batch entry.
template <class T>
__global__ void __launch_bounds__(kOrderThreads) reorder_kernel(const __grid_constant__ HeadOrder order) {
  __shared__ float warp_sums[kOrderThreads / 32];
  const int head = static_cast<int>(blockIdx.y) % order.heads,
            entry = static_cast<int>(blockIdx.y) / order.heads;
  const int thread = static_cast<int>(threadIdx.x), pieces = order.head_dim / kPieceElements;
  const int64_t all = int64_t{order.rows} * pieces;
  const auto place = [&](const auto& rows, int64_t piece) {
    return entry * rows.batch + head * rows.head + piece / pieces * rows.row +
           piece % pieces * kPieceElements;
  };
  const float factor = order.factors == nullptr ? 1 : order.factors[order.factor_count == 1 ? 0 : head];
  const int64_t first = int64_t{blockIdx.x} * kOrderPieces * kOrderThreads + thread;
  uint4 read[kOrderPieces], beside[kOrderPieces] = {};
#pragma unroll
  for (int i = 0; i < kOrderPieces; ++i) {
    const int64_t piece = first + i * kOrderThreads;
    if (piece >= all) continue;
    read[i] = load8(static_cast<const T*>(order.from.data) + place(order.from, piece));
    if (order.sums != nullptr)
      beside[i] = load8(static_cast<const T*>(order.beside.data) + place(order.beside, piece));
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kOrderPieces; ++i) {
    const int64_t piece = first + i * kOrderThreads;
    if (piece >= all) continue;
    T* const to = static_cast<T*>(order.to.data) + place(order.to, piece);
    if (order.factors == nullptr) {
      store8(to, read[i]);
      continue;
    }
    float x[kPieceElements], y[kPieceElements], scaled[kPieceElements];
    unpack8<T>(read[i], x);
    unpack8<T>(beside[i], y);
#pragma unroll
    for (int e = 0; e < kPieceElements; ++e) {
      sum = fmaf(x[e], y[e], sum);
      scaled[e] = x[e] * factor;
    }
    store8(to, uint4{arch::pack_pair<T>(scaled[0], scaled[1]), arch::pack_pair<T>(scaled[2], scaled[3]),
                     arch::pack_pair<T>(scaled[4], scaled[5]), arch::pack_pair<T>(scaled[6], scaled[7])});
  }
  if (order.sums == nullptr) return;
  sum = arch::warp_sum(sum);
  if (thread % 32 == 0) warp_sums[thread / 32] = sum;
  __syncthreads();
  if (thread > 0) return;
  float block_sum = 0;
  for (const float of_warp : warp_sums) block_sum += of_warp;
  const int64_t of_head = int64_t{head} * (gridDim.y / static_cast<unsigned>(order.heads)) + entry;
  order.sums[of_head * gridDim.x + blockIdx.x] = block_sum;
}

}  // namespace splash::gpu::entmax
