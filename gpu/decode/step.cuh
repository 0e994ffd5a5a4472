#pragma once
// The kernel of a step: a team of blocks (team.cuh) takes a unit from its queries to its outputs.
//
//   bound from head and tail -> screen an eighth -> sync, raise the bounds -> screen the rest -> sync, raise
//   the bounds, filter and score the lists -> sync -> solve
//
// The syncs are where blocks see what others have found; bounds each block computes for itself. Where a block
// has found few keys it leaves its bounds as they are: scoring those keys takes less time.

#include "gpu/decode/launch.cuh"
#include "gpu/decode/refine.cuh"
#include "gpu/decode/screen.cuh"
#include "gpu/decode/solve.cuh"
#include "gpu/decode/start.cuh"

namespace splash::gpu::decode {

template <class Screen, int kDim>
struct StepMemory {
  float bounds[kRows];
  int32_t pages[kHeldPages];
  SampleScores scores;
  int32_t kept[kWarps][kFiltered];
  union {
    __align__(16) typename Screen::Memory screens[kWarps];
    Lists<listed_keys(kDim)> lists;
  };
};

constexpr int kFewOfEighth = 4, kFew = 16;  // keys of a warp

template <class T, int kDim, int kBits>
__global__ void __launch_bounds__(kThreads, blocks_per_multiprocessor(kDim))
    step_kernel(const __grid_constant__ Step p) {
  entmax::wait_for_kernels_before();
  using Screen = typename ScreenOf<T, kDim, kBits>::Type;
  auto& memory = *reinterpret_cast<StepMemory<Screen, kDim>*>(dynamic_shared_memory());
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  Unit unit(p, static_cast<int>(blockIdx.x) / p.team);
  const int table_length = p.table.lengths[unit.sequence];
  const bool exists = sequence_exists(p, unit, table_length, memory.pages);
  const Ranges ranges = ranges_of(p, exists ? table_length : 0);
  const Team team(p, ranges);
  if (team.rank >= team.size) return;
  const bool is_first = team.rank == 0;
  if (is_first && threadIdx.x == 0) {
    p.overflowed[unit.index] = 0;
    if (p.outputs.counts != nullptr) {
      const int head = ranges.first_tile == 0 ? kHeadKeys : 0;
      p.outputs.counts[unit.index * 4] = max((ranges.tiles - ranges.first_tile) * ranges.tile_keys - head, 0);
      p.outputs.counts[unit.index * 4 + 3] = 0;
    }
  }

  const Visible sees(p, unit, ranges.length, lane);
  const Run run(ranges, team.warp(), team.warps());
  Screen screen(p, unit, ranges, run, memory.screens[warp], lane);
  float largest[kLargest];
  start_unit<T, kDim>(p, unit, ranges, sees, memory.scores, memory.bounds, largest);
  const int runs = ranges.tiles > ranges.first_tile ? team.warps() : 0, segment = 1 + team.warp();
  if (runs > 0) {
    Found found(p, unit, segment, lane);
    const int eighth = (run.count + 7) / 8;
#pragma unroll 1
    for (int pass = 0; pass < 2; ++pass) {
      screen.screen(pass == 0 ? 0 : eighth, pass == 0 ? eighth : run.count, memory.bounds, found);
      found.propose(p, unit, pass);
      team.sync();
      if (__syncthreads_or(found.count() > (pass == 0 ? kFewOfEighth : kFew) ? 1 : 0) == 0) continue;
      refine_bounds<T, kDim>(p, unit, sees, ranges.length, runs, pass, largest, memory.bounds);
      __syncthreads();
    }
    const Queries<T, kDim> q(p, unit, lane);
    rescore_segment<T, kDim>(p, unit, q, sees, ranges.length, segment, found.count(), memory.bounds,
                             memory.kept[warp]);
  }
  if (is_first) list_sample(p, unit, ranges, memory.scores, memory.bounds);
  team.sync();
  solve_rows<T, kDim>(p, unit, team, exists ? ranges.length : -1, runs, memory.lists);
}

}  // namespace splash::gpu::decode
