#pragma once
// The blocks that work on one unit: a cluster on sm_90, elsewhere one block. They share the unit's tiles and,
// at the end, its rows; all else each block computes for itself.

#include "gpu/arch/cluster.cuh"
#include "gpu/decode/problem.h"

namespace splash::gpu::decode {

constexpr int kThreads = 32 * kWarps;

struct Team {
  int rank, size;  // blocks of rank >= size have nothing to do

  // blocks: of the cluster; working: those with something to do.
  __device__ Team(int blocks, int working)
      : rank(static_cast<int>(blockIdx.x) % blocks), size(working), alone_(blocks == 1) {}
  __device__ Team(const Step& p, const Ranges& ranges) : Team(p.team, working_blocks(p, ranges)) {}

  __device__ int warp() const { return rank * kWarps + static_cast<int>(threadIdx.x) / 32; }
  __device__ int warps() const { return size * kWarps; }

  // Afterwards each thread sees what any thread of the team wrote before.
  __device__ void sync() const {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    if (!alone_) return arch::cluster_sync();
#endif
    __syncthreads();
  }

 private:
  // As many as have least_tiles a warp, but no warp has more tiles than its segments are made for.
  static __device__ int working_blocks(const Step& p, const Ranges& ranges) {
    const int each = kWarps * p.least_tiles;
    return max(1, min(p.team, (ranges.tiles - ranges.first_tile + each - 1) / each));
  }

  bool alone_;
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
