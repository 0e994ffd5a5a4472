#pragma once
// What every rung of this ladder shares: the problem as a kernel sees it, the plan and launch of a grid with
// one block per tile of queries, and the choice of an instantiation by dtype and padded head_dim.

#include <algorithm>
#include <limits>
#include <string>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "gpu/arch/reduce.cuh"
#include "gpu/cuda_check.h"
#include "gpu/engine/trace.h"
#include "gpu/engine/variant.h"

namespace splash::gpu::wmma_ladder {

inline constexpr int kWarp = 32;
inline constexpr double kLog2e = 1.4426950408889634;
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Limits of a rung: all take 16-bit types, head_dims from 32 on, and causal masks.
struct RungLimits {
  int compute_capability = 80;
};
inline Limits limits_of(const RungLimits& rung) {
  return {.dtypes = {Dtype::f16, Dtype::bf16},
          .head_dim_min = 32,
          .causal = true,
          .compute_capability = rung.compute_capability};
}

struct Problem {
  const void *q, *k, *v;
  void* out;
  int group;    // query heads per key head
  int q_tiles;  // query tiles per head
  int q_len, kv_len, head_dim;
  bool causal;
  float scale_log2;  // exp(scale * s) = exp2(scale_log2 * s)
};

// What one block works on: a tile of queries of one head.
struct BlockTask {
  int head, kv_head;  // counted over all batches
  int first_query;
  int end_key;                  // no query of the tile sees this key or a later one
  int64_t q_offset, kv_offset;  // of the head's first row, in elements
};

// One past the last key that `query` sees; causal masks are aligned at the bottom right.
__host__ __device__ inline int end_of_keys(const Problem& p, int query) {
  const int end = p.causal ? query + 1 + p.kv_len - p.q_len : p.kv_len;
  return end < 0 ? 0 : end > p.kv_len ? p.kv_len : end;
}

// The GPU starts blocks in order. By default the tiles of a head follow one another, so that its K and V stay
// in L2. With `longest_first` (under a causal mask) the last tiles of all heads come first, so that no long
// tile starts near the end.
__host__ __device__ inline BlockTask block_task(const Problem& p, int block, int blocks, int tile_q,
                                                bool longest_first) {
  const int heads = blocks / p.q_tiles;
  const int tile = longest_first ? p.q_tiles - 1 - block / heads : block % p.q_tiles;
  BlockTask task;
  task.head = longest_first ? block % heads : block / p.q_tiles;
  task.kv_head = task.head / p.group;
  task.first_query = tile * tile_q;
  task.end_key = end_of_keys(p, task.first_query + tile_q - 1);
  task.q_offset = int64_t{task.head} * p.q_len * p.head_dim;
  task.kv_offset = int64_t{task.kv_head} * p.kv_len * p.head_dim;
  return task;
}
__device__ inline BlockTask block_task(const Problem& p, int tile_q, bool longest_first = false) {
  return block_task(p, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), tile_q, longest_first);
}

// A row without a finite score yet has max -inf. It is shifted by 0 instead, so that exp2(-inf - 0) is 0, as
// it should be, and not NaN.
__device__ inline float shift_of(float max) {
  return max == -kInfinity ? 0.0F : max;
}

template <class T>
__device__ T rounded(float x) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(x);
  } else {
    return __float2bfloat16_rn(x);
  }
}

__device__ inline float widened(__half x) {
  return __half2float(x);
}
__device__ inline float widened(__nv_bfloat16 x) {
  return __bfloat162float(x);
}

// Calls use(row, column) for this thread's share of a tile's 16-byte vectors. The loop is unrolled, so that
// all loads are in flight before the first has arrived.
template <int kRows, int kDim, int kThreads, class T, class Use>
__device__ void for_each_vector(const Use& use) {
  constexpr int kVector = 16 / sizeof(T), kVectors = kDim / kVector, kCount = kRows * kVectors;
#pragma unroll
  for (int turn = 0; turn < (kCount + kThreads - 1) / kThreads; ++turn) {
    const int i = turn * kThreads + static_cast<int>(threadIdx.x);
    if (kCount % kThreads == 0 || i < kCount) use(i / kVectors, i % kVectors * kVector);
  }
}

// Copies rows [first, first + kRows) of a [length, head_dim] matrix to shared memory. Elements outside the
// matrix become zero, so that products ignore them and no NaN left by an earlier block reaches a product.
template <int kRows, int kDim, int kStride, int kThreads, class T>
__device__ void load_rows(T* shared, const T* matrix, int first, int length, int head_dim) {
  for_each_vector<kRows, kDim, kThreads, T>([&](int row, int column) {
    uint4 vector = make_uint4(0, 0, 0, 0);
    if (first + row < length && column < head_dim)
      vector = *reinterpret_cast<const uint4*>(matrix + int64_t{first + row} * head_dim + column);
    *reinterpret_cast<uint4*>(shared + row * kStride + column) = vector;
  });
}

template <class T, int kDim>
struct Instance {
  using Element = T;
  static constexpr int kHeadDim = kDim;
};

inline int padded_dim(int64_t head_dim) {
  return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256;
}

// Calls make(Instance<T, kDim>{}) for the dtype and the padded head_dim.
template <class Make>
auto for_instance(Dtype dtype, int64_t head_dim, const Make& make) {
  const int dim = padded_dim(head_dim);
  if (dtype == Dtype::f16) {
    if (dim == 64) return make(Instance<__half, 64>{});
    return dim == 128 ? make(Instance<__half, 128>{}) : make(Instance<__half, 256>{});
  }
  if (dim == 64) return make(Instance<__nv_bfloat16, 64>{});
  return dim == 128 ? make(Instance<__nv_bfloat16, 128>{}) : make(Instance<__nv_bfloat16, 256>{});
}

// A kernel and the shared memory that it asks for.
struct Entry {
  const void* function = nullptr;
  int64_t shared_bytes = 0;
};

inline int64_t tiles_of_queries(const AttentionShape& shape, int tile_q) {
  return (shape.q_len + tile_q - 1) / tile_q;
}

// One launch with one block per tile of queries of one head.
inline Plan tiled_plan(const AttentionSpec& spec, const Tile& tile, const char* name, int threads,
                       const Entry& entry, MathUnit unit = MathUnit::f16) {
  const AttentionShape& shape = spec.shape;
  Plan plan;
  plan.tile = tile;
  plan.kernels.push_back({.name = name,
                          .function = entry.function,
                          .blocks = shape.batch * shape.q_heads * tiles_of_queries(shape, tile.q),
                          .threads = threads,
                          .shared_bytes = entry.shared_bytes});
  plan.unit = unit;
  return plan;
}

inline Problem problem_of(const AttentionSpec& spec, int tile_q, const Arguments& args) {
  const AttentionShape& shape = spec.shape;
  return {.q = args.q,
          .k = args.k,
          .v = args.v,
          .out = args.out,
          .group = static_cast<int>(shape.group()),
          .q_tiles = static_cast<int>(tiles_of_queries(shape, tile_q)),
          .q_len = static_cast<int>(shape.q_len),
          .kv_len = static_cast<int>(shape.kv_len),
          .head_dim = static_cast<int>(shape.head_dim),
          .causal = spec.mask.causal,
          .scale_log2 = static_cast<float>(spec.score_scale() * kLog2e)};
}

template <class... Parameters>
void launch_kernel(const KernelLaunch& kernel, const Arguments& args, Parameters&... parameters) {
  void* addresses[] = {&parameters...};
  check_cuda(cudaLaunchKernel(kernel.function, dim3(static_cast<unsigned>(kernel.blocks)),
                              dim3(static_cast<unsigned>(kernel.threads)), addresses,
                              static_cast<size_t>(kernel.shared_bytes), args.stream),
             "launch " + kernel.name);
}

// How a rung walks over the keys of a tile of queries. Tiles that no query sees are neither read nor
// multiplied.
struct Walk {
  bool longest_first = false;  // under a causal mask
  bool first_anyway = false;   // the first tile is loaded even if no query sees it
  bool one_ahead = false;      // one tile after the last is loaded, too
  bool backwards = false;
  int at_once = 1;  // tiles that the block's warpgroups take in parallel
  bool through_l1 = false;
  int threads_of_row = kWarp;  // each corrects the row's sum once per tile
};

// One block per tile of queries, as in tiled_plan().
inline std::vector<KernelTrace> trace_walk(const AttentionSpec& spec, Dtype dtype, const Plan& plan,
                                           const Walk& walk) {
  const KernelLaunch& kernel = plan.kernels.front();
  const int tile_q = plan.tile.q, tile_k = plan.tile.k, dim = padded_dim(spec.shape.head_dim);
  const auto run = [=, rows = TensorRows(spec.shape, dtype), p = problem_of(spec, tile_q, {}),
                    blocks = static_cast<int>(kernel.blocks)](int64_t block, BlockTrace& trace) {
    const BlockTask task =
        block_task(p, static_cast<int>(block), blocks, tile_q, walk.longest_first && p.causal);
    const auto fetch = [&](int tile) {
      rows.read_k(trace, task.kv_head, int64_t{tile} * tile_k, tile_k);
      rows.read_v(trace, task.kv_head, int64_t{tile} * tile_k, tile_k);
    };
    rows.read_q(trace, task.head, task.first_query, tile_q);
    const int tiles = (task.end_key + tile_k - 1) / tile_k;
    if (tiles == 0 && walk.first_anyway) fetch(0);
    for (int turn = 0; turn < tiles; ++turn) {
      if (turn % walk.at_once == 0) trace.next_step();
      fetch(walk.backwards ? tiles - 1 - turn : turn);
      trace.multiply(tile_q, tile_k, dim);
      trace.multiply(tile_q, dim, tile_k);
      trace.exponentiate(tile_q, tile_k, walk.threads_of_row);
    }
    if (tiles > 0 && walk.one_ahead) fetch(tiles);
    trace.next_step();
    rows.write_out(trace, task.head, task.first_query, tile_q);
  };
  return {{.kernel = kernel.name, .blocks = kernel.blocks, .through_l1 = walk.through_l1, .run = run}};
}

// For the rungs that read with ordinary loads, one tile at a time.
inline std::vector<KernelTrace> trace_tiles(const AttentionSpec& spec, Dtype dtype, const Plan& plan) {
  return trace_walk(spec, dtype, plan, {.through_l1 = true});
}

// Launches the plan's only kernel, which takes a Problem.
inline void launch_tiles(const AttentionSpec& spec, Dtype /*dtype*/, const Plan& plan,
                         const Arguments& args) {
  Problem problem = problem_of(spec, plan.tile.q, args);
  launch_kernel(plan.kernels.front(), args, problem);
}

}  // namespace splash::gpu::wmma_ladder
