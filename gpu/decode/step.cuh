#pragma once
// The kernels of a step: a team of blocks (team.cuh) takes a unit from its queries to its outputs.
//
//   read the unit -> score head and tail, screen the first tiles -> sync, bound by the best
//   -> list those above, screen the rest -> sync, raise the bounds
//   -> score those above -> sync -> solve
//
// Where the first tiles are all there are, the second line falls away. The syncs are where blocks see what
// others have found; bounds each block computes for itself. Where a block has found few keys it leaves its
// bounds as they are: scoring those keys takes less time. A unit whose last step was broad is left to the
// dense pass (dense.cuh) at once. A unit that recalls keys of its last step (recent.cuh) has bounds at once:
//
//   read the unit -> score head, tail and remembered keys -> screen, list those above the bounds
//   -> score them -> sync, or the team's last block goes on alone -> solve
//
// A second kernel takes those units; each kernel's blocks leave the other's at once. One kernel for both
// would need more registers than there are. A step without memory has one kernel, which knows of none. Nor
// does that of short steps (short_step.cuh).

#include "gpu/decode/launch.cuh"
#include "gpu/decode/recent.cuh"
#include "gpu/decode/refine.cuh"
#include "gpu/decode/screen.cuh"
#include "gpu/decode/solve.cuh"
#include "gpu/decode/start.cuh"

namespace splash::gpu::decode {

// Of a block; dynamic_bytes() follow.
template <class T, int kDim, int kBits>
struct StepMemory {
  using Screen = typename ScreenOf<T, kDim, kBits>::Type;

  union {
    __align__(16) unsigned char stages[kWarps][Screen::kWarpBytes];
    Lists<listed_keys(kDim), kDim> lists;
    float best[kRows][kWarps * 8];  // scores, of each warp the largest of 8 lanes
  };
  HeldUnit<T, kDim> unit;
  typename Screen::Shared screened;
  Unit self;  // these as phases_share() has them
  Ranges ranges;
  Run runs[kWarps];
  RowBounds rows;
  union {
    __align__(16) int32_t kept[kWarps][kKept];
    float recent_scores[kRows][kRecentKeys];  // until there are bounds
  };
  int32_t recent[kRecentKeys], found[kWarps];
  float no_bounds[kRows];
  RecentState state;
};

// Whether the phases read the unit, its ranges and the warp's run from shared memory, each anew. At head_dim
// 64 a thread has 80 registers; what does not fit is local memory, for which shared memory leaves no room in
// L1.
constexpr bool phases_share(int head_dim) {
  return head_dim <= 64;
}
template <bool kShared, class V>
__device__ __forceinline__ const V& shared_or(const V& shared, const V& own) {
  if constexpr (kShared) return shared;
  return own;
}

constexpr int kFew = 64;           // keys that a warp has listed
constexpr int kManyOfBlock = 256;  // that a block has found, where it recalls

// Which units a kernel takes: all, where steps have no memory; those that recall nothing, beside a kernel of
// those that do; these.
enum class Way { alone, beside, recalling };

// What a block does.
template <class T, int kDim, int kBits, Way kWay>
__device__ __forceinline__ void take_unit(const Step& p) {
  constexpr bool kRecalls = kWay == Way::recalling, kRemembers = kWay != Way::alone;
  using Memory = StepMemory<T, kDim, kBits>;
  auto& memory = *reinterpret_cast<Memory*>(dynamic_shared_memory());
  auto* const scores_at = reinterpret_cast<unsigned char*>(&memory + 1);
  const SampleScores scores{reinterpret_cast<float*>(scores_at), sample_keys(p), p.listed_rows};
  auto* const held_scores = scores_at + sample_bytes(p);
  auto* const held_pages = held_scores + kWarps * held_score_bytes(p);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  constexpr bool kShared = phases_share(kDim);
  Unit own_unit(p, static_cast<int>(blockIdx.x) / p.team);
  const bool is_broad = was_broad(p, own_unit.index);
  const RecentState recent = kRemembers ? recent_state(p, own_unit.index) : RecentState{};
  int32_t remembered = -1;
  if (kRecalls && threadIdx.x < kRecentKeys)
    remembered = recent_of(p, own_unit.index)[kRecentStateWords + threadIdx.x];
  const int length = read_unit<T, kDim>(p, own_unit, memory.unit, reinterpret_cast<int32_t*>(held_pages));
  if (kRemembers && (recent.recalls() && !is_broad) != kRecalls) return;
  const Ranges own_ranges = ranges_of(p, max(length, 0));
  if constexpr (kRecalls) {
    if (threadIdx.x < kRecentKeys) memory.recent[threadIdx.x] = remembered;
    if (threadIdx.x < kRows) memory.no_bounds[threadIdx.x] = INFINITY;
  }
  if (threadIdx.x == 0) {
    if constexpr (kRemembers) memory.state = recent;
    if constexpr (kShared) {
      memory.self = own_unit;
      memory.ranges = own_ranges;
    }
  }
  if (kShared || kRecalls) __syncthreads();
  const Unit& unit = shared_or<kShared>(memory.self, own_unit);
  const Ranges& ranges = shared_or<kShared>(memory.ranges, own_ranges);
  const Team team(p, ranges, !kRecalls);
  if (team.rank >= team.size) return;
  const bool is_first = team.rank == 0;
  if (is_first && threadIdx.x == 0)
    start_outputs(p, unit, ranges, is_broad, kWay == Way::beside && recent.is_written() ? kWrittenBit : 0);
  if (is_broad) return;

  const Visible sees(p, unit, ranges.length, lane);
  const Run own_run(ranges, team.warp(), team.warps());
  if constexpr (kShared) {
    if (lane == 0) memory.runs[warp] = own_run;
    __syncwarp();
  }
  const Run& run = shared_or<kShared>(memory.runs[warp], own_run);
  const int runs = ranges.tiles > ranges.first_tile ? team.warps() : 0, segment = 1 + team.warp();
  // Head and tail are needed before any tile. Asked for behind the tiles, they would come behind them.
  SampleKeys<T, kDim> sample;
  sample.load(p, unit, ranges, 16 * warp, lane);
  RememberedKeys<T, kDim> recalled;
  if constexpr (kRecalls) recalled.load(p, unit, ranges, memory.recent, warp, lane);
  using Screen = typename Memory::Screen;
  const ScreenLane screen_lane = Screen::lane_of(p, lane);
  Screen screen(p, unit, ranges, run, memory.unit.queries, memory.screened, memory.stages[warp], screen_lane);
  if (warp == kWarps - 1) Screen::prepare(memory.screened, memory.unit.queries, lane);
  if constexpr (kRecalls)
    recalled.score(memory.unit.queries, sees, memory.recent, memory.recent_scores, warp, lane);
  screen.load_ahead();
  float largest[kLargest];
  score_sample(p, unit, memory.unit, ranges, sample, sees, scores, largest, memory.rows);

  // Screens tiles [begin, end) against the bounds: calls add(key, upper, wanted), as screen() does, with
  // those that are above.
  const auto screen_above = [&](int begin, int end, const auto& add) {
    const float bound[2] = {memory.rows.bounds[screen_lane.row()] * screen.from_unit()[0],
                            memory.rows.bounds[screen_lane.row() + 1] * screen.from_unit()[1]};
    screen.screen(begin, end, [&](int key, const float(&upper)[4]) {
      bool wanted[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) wanted[i] = !(upper[i] <= bound[i % 2]);  // a NaN is wanted
      add(key, upper, wanted);
    });
  };
  // Scores what the warps have found above the bounds. listed: rescore_segment.
  const auto rescore = [&](const FoundKeys<kKept>& found, int listed) {
    const KeyShare mine(found.count(), __syncthreads_or(found.count() > kMany ? 1 : 0) != 0, memory.found);
    const int first_segment = 1 + team.rank * kWarps;
    // Where there are too many for good bounds from memory, their scores raise the bounds first.
    bool is_raising = kRecalls && mine.all > kManyOfBlock;
#pragma unroll 1
    for (bool again = true; again; is_raising = false) {
      again = is_raising;
      int at = mine.begin;
      rescore_segment(
          p, unit, memory.unit, sees, ranges.length, segment, listed < 0 ? mine.end - mine.begin : listed,
          is_raising ? memory.no_bounds : memory.rows.bounds, memory.kept[warp], lane,
          [&](int32_t(&kept)[kKept], int& count) {
            count = min(mine.end - at, kKept);
            if (!mine.are_shared) return false;  // they are there
            at = collect_shared(p, unit, first_segment, memory.found, kept, at, count, lane);
            return at < mine.end && !is_raising;  // the first ones do
          },
          [&](const float(&of_lane)[2]) {
            if (!is_raising) return;
#pragma unroll
            for (int j = 0; j < 2; ++j) memory.best[2 * (lane % 4) + j][8 * warp + lane / 4] = of_lane[j];
          });
      if (again) {
        __syncthreads();
        raise_bounds(unit, memory.unit.entmax[warp], memory.best, largest, memory.rows.bounds[warp],
                     memory.rows);
        __syncthreads();
      }
    }
  };
  if constexpr (kRecalls) {
    raise_bounds(unit, memory.unit.entmax[warp], memory.recent_scores, largest, -INFINITY, memory.rows);
    __syncthreads();
    if (runs > 0) {
      FoundKeys found(p, unit, segment, memory.kept[warp], screen_lane);
      screen_above(0, run.count,
                   [&](int key, const float(&)[4], const bool(&wanted)[4]) { found.add(key, wanted); });
      rescore(found, -1);
    }
  } else {
    const auto refine = [&](const Proposals& proposals, int pass, bool is_worth_it) {
      if (runs > 0) proposals.write(p, unit, segment, pass);
      team.sync();
      if (__syncthreads_or(is_worth_it ? 1 : 0) != 0)
        refine_bounds<kBits == 0>(p, unit, memory.unit, sees, ranges.length, runs, pass, largest,
                                  memory.rows);
      __syncthreads();
    };

    Held held(p, ranges, run, memory.rows, memory.unit.entmax, screen.unit(),
              held_scores + warp * held_score_bytes(p), screen_lane);
    const int held_tiles = min(run.count, p.held_tiles);
    screen.screen(0, held_tiles, [&](int key, const float(&upper)[4]) { held.take(key, upper); });
    refine(held.proposals(), 0, true);
    if (kRemembers && is_first && threadIdx.x == 0)
      set_recent_state(p, unit.index, memory.state.after_wait());  // the team's blocks have read it
    if (runs > 0) {
      int listed = -1;
      FoundKeys found(p, unit, segment, memory.kept[warp], screen_lane);
      if (run.most <= p.held_tiles) {
        held.visit(memory.rows,
                   [&](int key, unsigned wanted, const uint4& /*codes*/) { found.add(key, wanted); });
      } else {
        Found list(p, unit, segment, screen_lane, held.proposals());
        list_held(held, memory.rows, memory.unit.entmax, list);
        screen_above(held_tiles, run.count, [&](int key, const float(&upper)[4], const bool(&wanted)[4]) {
          list.add(key, upper, wanted, screen.unit());
        });
        refine(list.proposals(), 1, list.count() > kFew);
        listed = list.count();
        keep_listed(p, unit, segment, listed, memory.rows.bounds, found, lane);
      }
      rescore(found, listed);
    }
  }
  if (is_first) list_sample(p, unit, ranges, scores, memory.rows.bounds);
  Team solving = team;
  if (kRecalls && !p.is_cluster) {  // none waits: the last block of the team goes on alone
    if (!arch::comes_last(p.barriers + kBarrierWords * (blockIdx.x / p.team) + 1, team.size)) return;
    solving = Team(1);
  } else {
    team.sync();
  }
  if (kRecalls && solving.rank == 0 && threadIdx.x == 0 && !memory.state.is_settled())
    set_recent_state(p, unit.index, memory.state.after_good());  // the team's blocks have read it
  solve_rows<T, kDim>(p, unit, memory.unit.entmax, memory.rows.bounds, solving, length, runs, kRecalls,
                      kRemembers && memory.state.is_written(), memory.lists);
}

template <class T, int kDim, int kBits, bool kRemembers>
__global__ void __launch_bounds__(kThreads, blocks_per_multiprocessor(kDim))
    step_kernel(const __grid_constant__ Step p) {
  entmax::wait_for_kernels_before();
  take_unit<T, kDim, kBits, kRemembers ? Way::beside : Way::alone>(p);
}

// Before a step whose teams meet at barriers. It is one block, so the step's blocks have room beside it and
// may be launched before its wait.
static __global__ void __launch_bounds__(kThreads) reset_barriers_kernel(uint32_t* barriers, int units) {
  entmax::let_next_kernel_start();
  entmax::wait_for_kernels_before_alone();
  for (int unit = static_cast<int>(threadIdx.x); unit < units; unit += kThreads)
    barriers[kBarrierWords * unit] = barriers[kBarrierWords * unit + 1] = 0;
}

// Behind step_kernel, if the step has a memory. It needs nothing of that one's, so it does not wait; but it
// ends behind it, for what follows waits for this one alone.
template <class T, int kDim, int kBits>
__global__ void __launch_bounds__(kThreads, blocks_per_multiprocessor(kDim))
    recalling_kernel(const __grid_constant__ Step p) {
  entmax::let_next_kernel_start();
  take_unit<T, kDim, kBits, Way::recalling>(p);
  if (blockIdx.x == 0) entmax::wait_for_kernels_before_alone();
}

}  // namespace splash::gpu::decode
