#pragma once
// The blocks that work on one unit: on sm_90 a cluster, or blocks that the device runs together anywhere;
// elsewhere one block. They share the unit's tiles and, at the end, its rows; all else each block computes
// for itself.

#include "gpu/arch/block_barrier.cuh"
#include "gpu/arch/cluster.cuh"
#include "gpu/decode/problem.h"

namespace splash::gpu::decode {

constexpr int kThreads = 32 * kWarps;

struct Team {
  int rank, size;  // blocks of rank >= size have nothing to do

  // A cluster of so many blocks, all of which work; one: the block alone.
  __device__ explicit Team(int blocks)
      : rank(static_cast<int>(blockIdx.x) % blocks), size(blocks), is_cluster_(blocks > 1) {}
  // meets: whether its blocks wait for one another where they are no cluster.
  __device__ Team(const Step& p, const Ranges& ranges, bool meets)
      : rank(static_cast<int>(blockIdx.x) % p.team),
        size(working_blocks(p, ranges)),
        is_cluster_(p.team > 1),
        step_(meets ? &p : nullptr) {}

  __device__ int warp() const { return rank * kWarps + static_cast<int>(threadIdx.x) / 32; }
  __device__ int warps() const { return size * kWarps; }

  // Afterwards each thread sees what any thread of the team wrote before.
  __device__ void sync() const {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    if (step_ != nullptr && !step_->is_cluster)
      return arch::sync_blocks(step_->barriers + kBarrierWords * (blockIdx.x / step_->team), rank == 0, size);
    if (is_cluster_) return arch::cluster_sync();
#endif
    __syncthreads();
  }

 private:
  // As many as have least_tiles a warp, but no warp has more tiles than its segments are made for.
  static __device__ int working_blocks(const Step& p, const Ranges& ranges) {
    const int each = kWarps * p.least_tiles;
    return max(1, min(p.team, (ranges.tiles - ranges.first_tile + each - 1) / each));
  }

  bool is_cluster_;
  const Step* step_ = nullptr;  // where its blocks may meet at a barrier
};

// The run of one warp: `count` tiles from `first` on. No warp of the team has more than `most`.
struct Run {
  int first, count, most;

  __device__ Run(const Ranges& ranges, int warp, int warps)
      : most((ranges.tiles - ranges.first_tile + warps - 1) / warps) {
    first = min(ranges.first_tile + warp * most, ranges.tiles);
    count = min(most, ranges.tiles - first);
  }
};

}  // namespace splash::gpu::decode
