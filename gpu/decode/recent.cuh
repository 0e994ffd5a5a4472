#pragma once
// What a step remembers for the next one (StepInputs::recent): of each query head the keys that weigh most.
// The next query keeps many of the same. Their exact scores, with those of head and tail, bound its threshold
// from below before any key is screened. Any keys do, if none counts twice: so numbers that do not exist, or
// that come again, are passed over, and memory of anything changes no result.
//
// A state tells which units begin so. All blocks of a step must see the same answer: so it changes between
// steps, by the dense pass's kernel, where Step::overflowed says so; what else the state holds, blocks
// change.

#include "gpu/decode/candidates.cuh"
#include "gpu/decode/start.cuh"
#include "gpu/decode/team.cuh"
#include "gpu/decode/unit.cuh"

namespace splash::gpu::decode {

// Whether keys are remembered, and whether they are worth it. The more often they were not, the longer they
// are not tried. 0: none yet.
struct RecentState {
  static constexpr uint32_t kNone = 0xFFFF00;  // where there is no memory
  uint32_t word = kNone;

  __device__ bool recalls() const { return (word & 1) != 0; }
  // Whether the step writes keys: the next one might read them.
  __device__ bool is_written() const { return recalls() || steps() <= 1; }

  // In a step that does not recall.
  __device__ RecentState after_wait() const { return of(level(), max(steps() - 1, 0), false); }
  // In one that does, as if its bounds were good.
  __device__ RecentState after_good() const {
    return steps() + 1 < kGoodSteps ? of(level(), steps() + 1, true) : of(max(level() - 1, 0), 0, true);
  }
  __device__ bool is_settled() const { return level() == 0; }  // after_good() changes nothing that matters

  // After a step that wrote keys; after one whose bounds were poor, or that was broad.
  __device__ RecentState after_written() const { return of(level(), 0, true); }
  __device__ RecentState after_poor() const {
    return of(min(level() + 1, kMostLevel), 2 << 3 * min(level() + 1, kMostLevel), false);
  }

 private:
  static constexpr int kMostLevel = 3;   // 16, 128 and 1024 steps from the first level on
  static constexpr int kGoodSteps = 64;  // that lower the level

  static __device__ RecentState of(int level, int steps, bool recalls) {
    return {static_cast<uint32_t>((recalls ? 1 : 0) | level << 2 | steps << 8)};
  }
  __device__ int level() const { return static_cast<int>(word >> 2 & 7); }
  __device__ int steps() const { return static_cast<int>(word >> 8 & 0xFFFF); }  // to wait, or good ones
};

__device__ __forceinline__ int32_t* recent_of(const Step& p, int unit) {
  return p.recent + int64_t{unit} * kRecentWords;
}
__device__ __forceinline__ RecentState recent_state(const Step& p, int unit) {
  return {p.recent == nullptr ? RecentState::kNone : static_cast<uint32_t>(read_from_l2(recent_of(p, unit)))};
}
__device__ __forceinline__ void set_recent_state(const Step& p, int unit, RecentState state) {
  *recent_of(p, unit) = static_cast<int32_t>(state.word);
}

// Of Step::overflowed, behind the rows' bits: the unit's bounds from memory were poor; keys are written, and
// the next step is to recall them.
constexpr uint32_t kRowBits = (1u << kRows) - 1, kPoorBit = 1u << kRows, kWrittenBit = 2u << kRows;

// A few keys are soon scored, by many warps. Beyond, bounds from keys that a screen proposes list fewer.
// support: of all rows.
__device__ __forceinline__ bool was_poor(int listed, int support, int runs) {
  constexpr int kFewOfWarp = 32, kTimesSupport = 8;
  return listed > kFewOfWarp * runs && listed > kTimesSupport * support;
}

// Between steps: which units recall in the next one. One block's threads call it.
__device__ __forceinline__ void change_states(const Step& p, int thread, int threads) {
  for (int unit = thread; unit < p.units; unit += threads) {
    const uint32_t bits = p.overflowed[unit];
    const RecentState state = recent_state(p, unit);
    if ((bits & (kRowBits | kPoorBit)) != 0) {
      if (state.recalls() || (bits & kWrittenBit) != 0) set_recent_state(p, unit, state.after_poor());
    } else if (bits != 0) {
      set_recent_state(p, unit, state.after_written());
    }
  }
}

// 16 of the remembered keys, on their way to a warp: the first chunk is warp 0's.
template <class T, int kDim>
struct RememberedKeys {
  ChosenKeys<T, kDim> keys;

  // remembered: all of them, in the block's shared memory.
  __device__ __forceinline__ void load(const Step& p, const Unit& unit, const Ranges& ranges,
                                       const int32_t (&remembered)[kRecentKeys], int warp, int lane) {
    // Those of head and tail are scored anyway.
    const int first = kHeadKeys, end = ranges.tail, at = 16 * warp + lane / 4;
    const int low = remembered[at], high = remembered[at + 8];
    keys.load(p, unit, low >= first && low < end ? low : -1, high >= first && high < end ? high : -1,
              ranges.length, lane);
  }

  // Their scores, to [kRows][kRecentKeys]; -inf for keys that are not there, or that an earlier one is.
  __device__ __forceinline__ void score(const HeldQueries<T, kDim>& held, const Visible& sees,
                                        const int32_t (&remembered)[kRecentKeys],
                                        float (&scores)[kRows][kRecentKeys], int warp, int lane) {
    const int at = 16 * warp + lane / 4;
    bool again_low = false, again_high = false;
#pragma unroll 2
    for (int i = 0; i < kRecentKeys / 4; ++i) {  // a quad's lanes share the earlier ones
      const int other = 4 * i + lane % 4, key = remembered[other];
      again_low |= other < at && key == keys.low;
      again_high |= other < at + 8 && key == keys.high;
    }
    const unsigned quad = 0xFu << (lane & ~3);
    again_low = (__ballot_sync(kAllLanes, again_low) & quad) != 0;
    again_high = (__ballot_sync(kAllLanes, again_high) & quad) != 0;
    const Queries<T, kDim> q(held, lane);
    float d[4];
    keys.score(q, sees, d);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      scores[2 * (lane % 4) + i % 2][at + i / 2 * 8] = (i < 2 ? again_low : again_high) ? -INFINITY : d[i];
  }
};

// Raises the bounds of all rows, one row per warp, to the thresholds of some keys: those whose scores these
// are, -inf for none, and the largest of head and tail. Rows that are not there, or have no threshold, are
// bounded by infinity. A barrier must follow.
template <int kKeys>
__device__ __forceinline__ void raise_bounds(const Unit& unit, const Entmax& entmax,
                                             const float (&scores)[kRows][kKeys],
                                             const float (&largest)[kLargest], float before,
                                             RowBounds& rows) {
  const int lane = static_cast<int>(threadIdx.x) % 32, row = static_cast<int>(threadIdx.x) / 32;
  float bound = INFINITY;
  if (row < unit.rows && entmax.gain > 0) {
    constexpr int kOthers = kBounding - kLargest;
    static_assert(kKeys % 32 == 0 && kKeys <= 32 * kOthers);
    Scores<kBounding> bounding;
#pragma unroll
    for (int i = 0; i < kOthers; ++i)
      bounding.of_lane[i] = 32 * i < kKeys ? scores[row][32 * i % kKeys + lane] : -INFINITY;
#pragma unroll
    for (int i = 0; i < kLargest; ++i) bounding.of_lane[kOthers + i] = largest[i];
    bound = fmaxf(bound_of(entmax, bounding, before), before);
  }
  __syncwarp();  // all lanes have read `before`, which may be the row's bound
  if (lane == 0) rows.bounds[row] = bound;
}

// Writes what the next step is to know of a row's head: of the keys that the row keeps, on its list, those
// that weigh most. The whole warp calls it.
template <class List>
__device__ __forceinline__ void remember_row(const Step& p, const Unit& unit, int row, const List& list,
                                             int lane) {
  if (unit.query(p, row) != p.q_len - 1) return;  // the last query of a head is nearest to the next step's
  const int most = recent_keys_of(p.group);
  int32_t* const to = recent_of(p, unit.index) + kRecentStateWords + row / p.q_len * most;
  float least = 0;  // of those that are written
  if (list.count > most) {
    float too_low = 0;
    least = 1;
#pragma unroll 1
    for (int step = 0; step < 10; ++step) {
      const float middle = 0.5f * (too_low + least);
      int above = 0;
#pragma unroll 1
      for (int i = lane; i < list.count; i += 32) above += list.values[i] > middle ? 1 : 0;
      above = __reduce_add_sync(kAllLanes, above);
      (above > most ? too_low : least) = middle;
    }
  }
  int count = 0;
#pragma unroll 1
  for (int first = 0; first < list.count; first += 32) {
    const int entry = first + lane;
    const bool wanted = entry < list.count && list.values[entry] > least;
    const int key = wanted ? list.keys[entry] : -1, place = place_of(wanted, lane, count);
    if (wanted && place < most) to[place] = key;
  }
  for (int i = count + lane; i < most; i += 32) to[i] = -1;
}

}  // namespace splash::gpu::decode
