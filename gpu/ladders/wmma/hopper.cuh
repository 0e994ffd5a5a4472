#pragma once
// What the rungs on Hopper share: tiles as TMA writes them, in consecutive panels of 64 columns (128 bytes,
// the width of the swizzle), and the two products of a warpgroup on 64 query rows.

#include "gpu/arch/bulk_copy.cuh"
#include "gpu/arch/mbarrier.cuh"
#include "gpu/arch/tensor_map.h"
#include "gpu/arch/warpgroup.cuh"
#include "gpu/arch/wgmma.cuh"
#include "gpu/ladders/wmma/register_softmax.cuh"

namespace splash::gpu::wmma_ladder {

inline constexpr int kWarpgroup = 128, kRows = 64;  // threads and query rows of a warpgroup
inline constexpr int kPanel = 64, kPanelRowBytes = 2 * kPanel;

struct Maps {
  CUtensorMap q, k, v, out;
};

// Loads a tile of all kDim columns; columns past head_dim and rows past the head's last arrive as zeros.
template <int kDim, int kTileRows, class T>
__device__ __forceinline__ void load_tile(T* tile, const CUtensorMap* map, uint64_t* barrier, int first_row,
                                          int head) {
#pragma unroll
  for (int column = 0; column < kDim; column += kPanel)
    arch::tensor_load(tile + column * kTileRows, map, barrier, column, first_row, head);
}

// Issues scores = Q K^T as one group.
template <class T, int kDim, int kTileN>
__device__ __forceinline__ void multiply_scores(float (&scores)[kTileN / 2], const T* q_tile,
                                                const T* k_tile) {
  const uint64_t q = arch::k_major_descriptor(q_tile), k = arch::k_major_descriptor(k_tile);
  arch::wgmma_fence();
#pragma unroll
  for (int d = 0; d < kDim; d += 16) {
    const int panel = d / kPanel, byte = 2 * (d % kPanel);
    arch::wgmma<T>(scores, arch::advance(q, panel * kRows * kPanelRowBytes + byte),
                   arch::advance(k, panel * kTileN * kPanelRowBytes + byte), d > 0);
  }
  arch::wgmma_commit();
}

// Issues out += P V as one group; P comes from registers.
template <class T, int kDim, int kTileN>
__device__ __forceinline__ void multiply_values(float (&out)[kDim / 2],
                                                const uint32_t (&probabilities)[kTileN / 16][4],
                                                const T* v_tile) {
  const uint64_t v = arch::mn_major_descriptor(v_tile, kTileN * kPanelRowBytes);
  arch::wgmma_fence();
#pragma unroll
  for (int i = 0; i < kTileN / 16; ++i)
    arch::wgmma<T, arch::Major::mn>(out, probabilities[i], arch::advance(v, i * 16 * kPanelRowBytes), true);
  arch::wgmma_commit();
}

// Tensor maps: queries and output in tiles of 64 rows, keys and values in tiles of `tile_n` rows.
inline Maps maps_of(const AttentionSpec& spec, Dtype dtype, int tile_n, const Arguments& args) {
  const AttentionShape& s = spec.shape;
  const auto map = [&](const void* data, int64_t heads, int64_t length, int tile_rows) {
    return arch::encode_tiles({.data = data,
                               .dtype = dtype,
                               .heads = s.batch * heads,
                               .length = length,
                               .dim = s.head_dim,
                               .tile_rows = tile_rows,
                               .tile_columns = kPanel});
  };
  return {map(args.q, s.q_heads, s.q_len, kRows), map(args.k, s.kv_heads, s.kv_len, tile_n),
          map(args.v, s.kv_heads, s.kv_len, tile_n), map(args.out, s.q_heads, s.q_len, kRows)};
}

// Launches the plan's only kernel, which takes a Problem and Maps.
inline void launch_with_maps(const AttentionSpec& spec, Dtype dtype, const Plan& plan,
                             const Arguments& args) {
  Problem problem = problem_of(spec, plan.tile.q, args);
  Maps maps = maps_of(spec, dtype, plan.tile.k, args);
  launch_kernel(plan.kernels.front(), args, problem, maps);
}

}  // namespace splash::gpu::wmma_ladder
