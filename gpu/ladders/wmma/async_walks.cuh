#pragma once
// The loops over key tiles of rungs 8, 12 and 13. They load K and V by cp.async into two buffers or one, with
// eight warps, padded rows and the four barriers of rung 6.

#include "gpu/arch/cp_async.cuh"
#include "gpu/ladders/wmma/phases.cuh"

namespace splash::gpu::wmma_ladder {

inline constexpr int kAsyncWarps = 8;

// As load_rows for a tile of K or V, but asynchronous: wait for the cp.async group, then __syncthreads().
template <class Tiles>
__device__ void start_loading(typename Tiles::T* tile, const void* matrix, const Problem& p,
                              const BlockTask& task, int first_key) {
  using T = typename Tiles::T;
  const T* const rows = static_cast<const T*>(matrix) + task.kv_offset;
  for_each_vector<kTileN, Tiles::kHeadDim, Tiles::kThreads, T>([&](int row, int column) {
    const bool inside = first_key + row < p.kv_len && column < p.head_dim;
    const int64_t from = inside ? int64_t{first_key + row} * p.head_dim + column : 0;
    arch::cp_async_16(tile + row * Tiles::kStride + column, rows + from, inside);
  });
}

// Two buffers: the next tile of K and V loads while the block works on this one.
template <class Tiles>
__device__ void walk_with_two_buffers(Tiles& tiles, typename Tiles::RowState& rows, const Problem& p,
                                      const BlockTask& task) {
  const auto start = [&](int first_key, int stage) {
    start_loading<Tiles>(tiles.k[stage], p.k, p, task, first_key);
    start_loading<Tiles>(tiles.v[stage], p.v, p, task, first_key);
    arch::cp_async_commit();
  };
  start(0, 0);
  for (int first_key = 0, stage = 0; first_key < task.end_key; first_key += kTileN, stage ^= 1) {
    // The other stage was read before the barrier that precedes accumulate(). Past the end this loads zeros.
    start(first_key + kTileN, stage ^ 1);
    arch::cp_async_wait<1>();
    __syncthreads();  // this tile of K and V is there, from all threads
    multiply_scores(tiles, stage);
    __syncthreads();
    softmax_in_place(tiles, rows, p, task, first_key);
    __syncthreads();
    multiply_values<Tiles::kInPlaceStride>(tiles, stage);
    __syncthreads();
    accumulate(tiles, rows);
  }
  arch::cp_async_wait<0>();
}

// One buffer for K and one for V. Q K^T frees the K buffer, and the load of the next K starts; P V frees the
// V buffer, and the load of the next V starts. Two groups are in flight at every wait, and the older one is
// always the one waited for.
template <class Tiles>
__device__ void walk_with_one_buffer(Tiles& tiles, typename Tiles::RowState& rows, const Problem& p,
                                     const BlockTask& task) {
  const auto start_keys = [&](int first_key) {
    start_loading<Tiles>(tiles.k[0], p.k, p, task, first_key);
    arch::cp_async_commit();
  };
  const auto start_values = [&](int first_key) {
    start_loading<Tiles>(tiles.v[0], p.v, p, task, first_key);
    arch::cp_async_commit();
  };
  start_keys(0);
  start_values(0);
  for (int first_key = 0; first_key < task.end_key; first_key += kTileN) {
    arch::cp_async_wait<1>();
    __syncthreads();  // this tile of K is there, from all threads
    multiply_scores(tiles);
    __syncthreads();                 // K is read
    start_keys(first_key + kTileN);  // past the end: zeros
    softmax_in_place(tiles, rows, p, task, first_key);
    arch::cp_async_wait<1>();
    __syncthreads();  // this tile of V is there, from all threads
    multiply_values<Tiles::kInPlaceStride>(tiles);
    __syncthreads();  // V is read
    start_values(first_key + kTileN);
    accumulate(tiles, rows);
  }
  arch::cp_async_wait<0>();
}

template <class T, int kDim, int kTileM, int kStages>
__global__ void __launch_bounds__(kAsyncWarps* kWarp) attention_by_async_copies(Problem p) {
  using Shared = Tiles<T, kDim, kTileM, kAsyncWarps, kPad, kStages>;
  auto& tiles = shared_tiles<Shared>();
  typename Shared::RowState rows;
  const BlockTask task = block_task(p, kTileM);
  load_queries(tiles, p, task);
  if constexpr (kStages == 2) {
    walk_with_two_buffers(tiles, rows, p, task);
  } else {
    walk_with_one_buffer(tiles, rows, p, task);
  }
  rows.template write<T>(p, task);
}

template <int kTileM, int kStages>
Plan plan_async(const AttentionSpec& spec, Dtype dtype, const char* name) {
  const Entry entry = for_instance(dtype, spec.shape.head_dim, [](auto instance) {
    using I = decltype(instance);
    using T = typename I::Element;
    return entry_of<Tiles<T, I::kHeadDim, kTileM, kAsyncWarps, kPad, kStages>>(
        attention_by_async_copies<T, I::kHeadDim, kTileM, kStages>);
  });
  return tiled_plan(spec, {.q = kTileM, .k = kTileN, .stages = kStages}, name, kAsyncWarps * kWarp, entry);
}

inline std::vector<KernelTrace> trace_async(const AttentionSpec& spec, Dtype dtype, const Plan& plan) {
  return trace_walk(spec, dtype, plan, {.first_anyway = true, .one_ahead = true});
}

}  // namespace splash::gpu::wmma_ladder
