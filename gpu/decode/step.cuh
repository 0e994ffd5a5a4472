#pragma once
// The kernel of a step: a team of blocks (team.cuh) takes a unit from its queries to its outputs.
//
//   bound from head and tail -> screen `recent` -> sync, raise the bounds -> screen `early` -> sync, raise the
//   bounds, filter and score the lists -> sync -> solve
//
// The syncs are where blocks see what others have listed; bounds each block computes for itself.

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
  const Tiles tiles(ranges, team.warp(), team.warps());
  Screen screen(p, unit, ranges, tiles, memory.screens[warp], lane);
  float largest[kLargest];
  start_unit<T, kDim>(p, unit, ranges, sees, memory.scores, memory.bounds, largest);
  const int runs = ranges.tiles > ranges.first_tile ? team.warps() : 0;
  const int first_recent = 1 + p.segments.early, early = 1 + team.warp(), recent = early + p.segments.early;
  int listed[2] = {};  // recent, early
#pragma unroll 1
  for (int is_early = 0; is_early < 2 && runs > 0; ++is_early) {
    Found found(p, unit, is_early ? early : recent, lane);
    screen.screen(is_early ? tiles.recent_count : 0, is_early ? tiles.count : tiles.recent_count, memory.bounds,
                  found);
    const int count = found.finish(p, unit);
    (is_early ? listed[1] : listed[0]) = count;
    team.sync();
    refine_bounds<T, kDim>(p, unit, sees, ranges.length, first_recent, is_early ? 1 : first_recent, runs, largest,
                           memory.bounds);
    __syncthreads();
  }
  const Queries<T, kDim> q(p, unit, lane);
#pragma unroll 1
  for (int is_early = 0; is_early < 2 && runs > 0; ++is_early)
    rescore_segment<T, kDim>(p, unit, q, sees, ranges.length, is_early ? early : recent,
                             is_early ? listed[1] : listed[0], memory.bounds, memory.kept[warp]);
  if (is_first) list_sample(p, unit, ranges, memory.scores, memory.bounds);
  team.sync();
  solve_rows<T, kDim>(p, unit, team, exists ? ranges.length : -1, runs, memory.lists);
}

}  // namespace splash::gpu::decode
