#pragma once
// The kernel of short steps: few keys, and a block for each unit, which takes it from its queries to its
// outputs. What lies between stays in the block's shared memory.
//
//   read the unit -> score head and tail, screen all tiles, holding upper scores
//   -> score the best of each row exactly, bound its threshold
//   -> list the keys above the bound of any row -> score them -> solve
//
// step.cuh does the same for any number of keys, rows and blocks, through lists in memory. Such a step's time
// is its phases, one after the other, not its bytes; here they are fewer, and multiprocessors with several
// units at once fill the time in which one of them waits.

#include "gpu/decode/launch.cuh"
#include "gpu/decode/refine.cuh"
#include "gpu/decode/screen.cuh"
#include "gpu/decode/solve.cuh"
#include "gpu/decode/start.cuh"

namespace splash::gpu::decode {

constexpr int kBoundKeys = 64;  // of a row, that bound its threshold, at most

// Of a block; dynamic_bytes() follow.
template <class T, int kDim, int kBits, int kBlockWarps>
struct ShortMemory {
  using Screen = LowBitScreen<T, kDim, kBits>;
  static constexpr int kPitch = 224 * kBlockWarps;  // scores of a row: of head, of keys above bounds, of tail

  struct Listed {
    int32_t keys[kPitch];                   // above the bound of any row, in key order
    float scores[kShortRows][kPitch];       // theirs; then those above the row's own bound, first come first
    int32_t row_keys[kShortRows][kPitch];   // the keys of these
    PartSums<kDim> parts[kBlockWarps / 2];  // of rows that warps share
  };
  union {
    __align__(16) unsigned char stages[kBlockWarps][Screen::kWarpBytes];
    Listed listed;
  };
  HeldUnit<T, kDim> unit;
  typename Screen::Shared screened;
  RowBounds rows;
  Best best[kShortRows][8 * kBlockWarps];
  float proposed[kShortRows][kBoundKeys];  // exact scores of some of these
  int32_t found[kBlockWarps], kept[kRows];
};

// Scores the best keys of each row exactly, and bounds its threshold by them and by the largest of head and
// tail. All threads call it; a barrier comes first and last.
template <class T, int kDim, int kBits, int kBlockWarps>
__device__ __forceinline__ void bound_rows(const Step& p, const Unit& unit, const Visible& sees, int length,
                                           const float (&largest)[kLargest],
                                           ShortMemory<T, kDim, kBits, kBlockWarps>& memory) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  // Of each row. A warp scores 16 keys of one row at a time.
  const int each = kBlockWarps == kWarps && unit.rows <= 2 ? kBoundKeys : kBoundKeys / 2;
  __syncthreads();
#pragma unroll 1
  for (int at = 16 * warp; at < each * unit.rows; at += 16 * kBlockWarps) {
    const int row = at / each, first = at % each;
    Best mine{-INFINITY, -1};
#pragma unroll 1
    for (int i = first + lane % 16; i < 8 * kBlockWarps; i += each) {
      const Best other = memory.best[row][i];
      if (other.upper > mine.upper) mine = other;
    }
    ChosenKeys<T, kDim> keys;
    keys.load(p, unit, __shfl_sync(kAllLanes, mine.key, lane / 4),
              __shfl_sync(kAllLanes, mine.key, lane / 4 + 8), length, lane);
    float d[4];
    keys.score({memory.unit.queries, lane}, sees, d);
    if (lane % 4 == row / 2) {
      memory.proposed[row][first + lane / 4] = row % 2 == 0 ? d[0] : d[1];
      memory.proposed[row][first + lane / 4 + 8] = row % 2 == 0 ? d[2] : d[3];
    }
  }
  __syncthreads();
  if (warp < kShortRows) {
    const Entmax entmax = memory.unit.entmax[warp];
    float bound = INFINITY;
    unsigned code = HeldCodes::kMost;
    if (warp < unit.rows && entmax.gain > 0) {
      Scores<kLargest + 2> bounding;
      bounding.of_lane[0] = lane < each ? memory.proposed[warp][lane] : -INFINITY;
      bounding.of_lane[1] = lane + 32 < each ? memory.proposed[warp][lane + 32] : -INFINITY;
#pragma unroll
      for (int i = 0; i < kLargest; ++i) bounding.of_lane[2 + i] = largest[i];
      bound = bound_of(entmax, bounding, -INFINITY);
      code = HeldCodes::of_bound(entmax, bound, memory.rows.bases[warp]);
    }
    if (lane == 0) {
      memory.rows.bounds[warp] = bound;
      memory.rows.codes[warp] = static_cast<uint8_t>(code);
    }
  }
  __syncthreads();
}

// Lists the held keys that are above a bound, in key order, as far as there is room. Returns how many there
// are. All threads call it; a barrier comes last.
template <class T, int kDim, int kBits, int kBlockWarps>
__device__ __forceinline__ int list_keys(const Held& held, int first_key, int room,
                                         ShortMemory<T, kDim, kBits, kBlockWarps>& memory) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  unsigned mine = 0;  // of 32 keys, those that are wanted: the lane's, as many times 32 from the first on
  held.visit(memory.rows, [&](int key, unsigned wanted, const uint4& /*codes*/) {
    wanted <<= 4 * (lane % 8);  // eight lanes have 32 keys
#pragma unroll
    for (int lanes = 1; lanes < 8; lanes *= 2) wanted |= __shfl_xor_sync(kAllLanes, wanted, lanes);
    wanted = __shfl_sync(kAllLanes, wanted, 8 * (lane % 4));
    if ((key - 4 * lane - first_key) / 128 == lane / 4) mine = wanted;
  });
  const int end = sum_up_to(__popc(mine), lane);
  if (lane == 31) memory.found[warp] = end;
  __syncthreads();
  int all = 0, place = end - __popc(mine);
#pragma unroll
  for (int i = 0; i < kBlockWarps; ++i) {
    place += i < warp ? memory.found[i] : 0;
    all += memory.found[i];
  }
#pragma unroll 1
  for (; mine != 0; mine &= mine - 1, ++place) {
    if (place < room) memory.listed.keys[place] = first_key + 32 * lane + __ffs(static_cast<int>(mine)) - 1;
  }
  __syncthreads();
  return all;
}

// Scores the listed keys for all rows. All threads call it; a barrier must follow.
template <class T, int kDim, int kBits, int kBlockWarps>
__device__ __forceinline__ void score_listed(const Step& p, const Unit& unit, const Visible& sees, int length,
                                             int count, ShortMemory<T, kDim, kBits, kBlockWarps>& memory) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  auto& listed = memory.listed;
  const Queries<T, kDim> q(memory.unit.queries, lane);
  const int row = 2 * (lane % 4);
  ChosenKeys<T, kDim> next;  // on their way while others are scored
  const auto load = [&](int first) {
    const int low = first + lane / 4, high = low + 8;
    next.load(p, unit, low < count ? listed.keys[low] : -1, high < count ? listed.keys[high] : -1, length,
              lane);
  };
  load(16 * warp);
#pragma unroll 1
  for (int i = 32 * kBlockWarps + thread; i < count;
       i += 32 * kBlockWarps) {  // later ones need not wait for DRAM in turn
    const T* const key = unit.key_of<T>(p, p.cache.keys, listed.keys[i], length);
    if (key != nullptr) arch::prefetch<kDim* int{sizeof(T)}>(key);
  }
#pragma unroll 1
  for (int first = 16 * warp; first < count; first += 16 * kBlockWarps) {
    const ChosenKeys<T, kDim> keys = next;
    load(first + 16 * kBlockWarps);
    float d[4];
    keys.score(q, sees, d);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = first + lane / 4 + i / 2 * 8, key = i < 2 ? keys.low : keys.high;
      if (row >= p.listed_rows || at >= count) continue;
      listed.scores[row + i % 2][kHeadKeys + at] = d[i];
      if (d[i] > memory.rows.bounds[row + i % 2])
        arch::prefetch<kDim* int{sizeof(T)}>(unit.in_page<T>(p, p.cache.values, unit.page(p, key), key));
    }
  }
}

// Puts a row's keys above its bound on its list, in key order: those of head, the listed ones, those of tail.
// list.values holds the scores of the listed ones, behind kHeadKeys places: so none is written before it is
// read. One warp calls it.
__device__ __forceinline__ void list_short_row(const Ranges& ranges, const int32_t* listed, int count,
                                               const float* sample, float bound, RowList& list,
                                               float& largest, int lane) {
  const int head_keys = ranges.tail > 0 ? kHeadKeys : 0, all = sampled_keys(ranges) + count;
#pragma unroll 1
  for (int first = 0; first < all; first += 32) {
    const int i = first + lane, at = i - head_keys;
    float score = -INFINITY;
    int key = -1;
    if (i < all) {
      const bool is_listed = at >= 0 && at < count;
      const int sampled = at < 0 ? i : i - count;
      score = is_listed ? list.values[kHeadKeys + at] : sample[sampled];
      key = is_listed ? listed[at] : sampled_key(ranges, sampled);
    }
    largest = arch::larger_or_nan(largest, score);
    const int place = place_of(score > bound, lane, list.count);
    if (score > bound) {
      list.keys[place] = key;
      list.values[place] = score;
    }
  }
  largest = arch::warp_max_or_nan(largest);
  __syncwarp();  // entries of other lanes
}

template <class T, int kDim, int kBits, int kBlockWarps>
__global__ void __launch_bounds__(32 * kBlockWarps, short_blocks_per_multiprocessor(kDim, kBlockWarps))
    short_kernel(const __grid_constant__ Step p) {
  Unit unit(p, static_cast<int>(blockIdx.x));
  entmax::wait_for_kernels_before();
  auto& memory = *reinterpret_cast<ShortMemory<T, kDim, kBits, kBlockWarps>*>(dynamic_shared_memory());
  auto* const scores_at = reinterpret_cast<unsigned char*>(&memory + 1);
  const SampleScores scores{reinterpret_cast<float*>(scores_at), sample_keys(p), p.listed_rows};
  auto* const held_scores = scores_at + sample_bytes(p);
  auto* const held_pages = held_scores + kBlockWarps * held_score_bytes(p);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const bool is_broad = was_broad(p, unit.index);
  const int length =
      read_unit<T, kDim, 32 * kBlockWarps>(p, unit, memory.unit, reinterpret_cast<int32_t*>(held_pages));
  const Ranges ranges = ranges_of(p, max(length, 0));
  if (threadIdx.x == 0) start_outputs(p, unit, ranges, is_broad, 0);
  if (is_broad) return;

  const Visible sees(p, unit, ranges.length, lane);
  const Run run(ranges, warp, kBlockWarps);
  SampleKeys<T, kDim> sample;
  sample.load(p, unit, ranges, 16 * warp, lane);
  using Screen = LowBitScreen<T, kDim, kBits>;
  const ScreenLane screen_lane = Screen::lane_of(p, lane);
  Screen screen(p, unit, ranges, run, memory.unit.queries, memory.screened, memory.stages[warp], screen_lane);
  if (warp == kBlockWarps - 1) Screen::prepare(memory.screened, memory.unit.queries, lane);
  screen.load_ahead();
  float largest[kLargest];
  score_sample<kBlockWarps>(p, unit, memory.unit, ranges, sample, sees, scores, largest, memory.rows);
  Held held(p, ranges, run, memory.rows, memory.unit.entmax, screen.unit(),
            held_scores + warp * held_score_bytes(p), screen_lane);
  screen.screen(0, run.count, [&](int key, const float(&upper)[4]) { held.take(key, upper); });
  held.proposals().put(memory.best, 8 * warp);
  bound_rows(p, unit, sees, ranges.length, largest, memory);

  const int room = ShortMemory<T, kDim, kBits, kBlockWarps>::kPitch - sample_keys(p);
  const int found = list_keys(held, run.first * ranges.tile_keys, room, memory);
  if (threadIdx.x == 0) {
    if (p.outputs.counts != nullptr) {
      p.outputs.counts[unit.index * 4 + 1] = found;
      p.outputs.counts[unit.index * 4 + 2] = found > room ? 0 : found;
    }
    if (found > max(ranges.length / kBroadShare, most_listed(kDim))) remember_broad(p, unit.index, true);
    if (found > room) leave_rows(p, unit.index, (1u << unit.rows) - 1);
  }
  if (found > room) return;
  score_listed(p, unit, sees, ranges.length, found, memory);
  __syncthreads();

  const int members = kBlockWarps / (unit.rows <= 2 ? 2 : kShortRows), row = warp / members;
  const bool has_row = row < unit.rows;
  RowList list{memory.listed.row_keys[row], memory.listed.scores[row], 0};
  if (has_row && warp % members == 0) {
    float score = -INFINITY;
    list_short_row(ranges, memory.listed.keys, found, scores.row(row), memory.rows.bounds[row], list, score,
                   lane);
    if (!solve_row<T, kDim>(p, unit, memory.unit.entmax[row], row, list, length < 0 ? NAN : score,
                            memory.rows.bounds[row], lane)) {
      list.count = 0;
      if (lane == 0) leave_rows(p, unit.index, 1u << row);
    }
  }
  add_values<T, kDim>(p, unit, row, row, has_row, members, list, length, memory.kept, memory.listed.parts,
                      [] {});
}

}  // namespace splash::gpu::decode
