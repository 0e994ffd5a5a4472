#pragma once
// Thresholds and outputs from exact scores, of rows whose keys a block's list holds. Others are left to the
// dense pass (dense.cuh): rows with more keys on the list than there is room for, and those that keep more
// than most_listed() of them, whether the list holds them or not.
//
// The same bits for any list that contains the support, whatever else it holds: with m the largest score, u =
// gain (score - m) + shift. f(shift) = sum of u_+^beta is summed in integers, so neither order nor keys with
// u <= 0 matter. shift is found by bisection on multiples of 2^-24, which asks only whether f >= 1. Below tau
// the support alone says yes; from tau on no other key adds to f. So each answer is a matter of the support.
// Values of the keys with p > 0 are added in parts, by places on the list of these keys.

#include <type_traits>

#include "gpu/decode/recent.cuh"
#include "gpu/decode/team.cuh"
#include "gpu/decode/unit.cuh"
#include "gpu/decode/values.cuh"
#include "gpu/entmax/schedule/launch.cuh"

namespace splash::gpu::decode {

constexpr int64_t kOne = int64_t{1} << 40;

// The sum of the lanes' weights, in units of 2^-40; from 2 on it may be too small.
__device__ __forceinline__ int64_t warp_weights(int64_t sum) {
  sum = min(sum, 2 * kOne);  // in halves, of which 32 lanes' sums fit 32 bits
  const int low = __reduce_add_sync(kAllLanes, static_cast<int>(sum & 0xFFFFFF)),
            high = __reduce_add_sync(kAllLanes, static_cast<int>(sum >> 24));
  return (int64_t{high} << 24) + low;
}

// 1 / f, by which weights become probabilities.
__device__ __forceinline__ float inverse_of(int64_t weights) {
  return static_cast<float>(kOne / static_cast<double>(weights));
}

// A lane's sum of weights u_+^beta, none above 1, each rounded down to a multiple of 2^-40: in two parts, of
// which sums with 2^23 are the lowest bits. A conversion to int64_t takes longer.
struct WeightSum {
  static constexpr int kMost = 2048;  // weights of a sum
  uint32_t whole = 0, part = 0;       // in units of 2^-20 and of 2^-40

  __device__ __forceinline__ void add(float weight) {
    constexpr float kToInteger = 0x1p23f;
    const float high = __fmaf_rz(weight, 0x1p20f, kToInteger),
                rest = fmaf(weight, 0x1p20f, kToInteger - high),  // exact
        low = __fmaf_rz(rest, 0x1p20f, kToInteger);
    whole += __float_as_uint(high) - __float_as_uint(kToInteger);
    part += __float_as_uint(low) - __float_as_uint(kToInteger);
  }
  __device__ __forceinline__ int64_t total() const { return (int64_t{whole} << 20) + part; }
};

template <class Kind>
__device__ __forceinline__ float weight_of(const Entmax& entmax, Kind kind, float u) {
  return fmaxf(u, 0.0f) * entmax.slope(kind, u);
}

// The sums of u_+^beta for several shifts, in units of 2^-40; from 2 on a sum may be too small.
template <int kShifts, class Kind>
__device__ __forceinline__ void sum_weights(const Entmax& entmax, Kind kind, const RowList& list,
                                            const float (&shifts)[kShifts], int64_t (&sums)[kShifts],
                                            int lane) {
  WeightSum of_lane[kShifts];
#pragma unroll 1
  for (int i = lane; i < list.count; i += 32) {
    const float value = list.values[i];
#pragma unroll
    for (int j = 0; j < kShifts; ++j) of_lane[j].add(weight_of(entmax, kind, value + shifts[j]));
  }
#pragma unroll
  for (int j = 0; j < kShifts; ++j) sums[j] = warp_weights(of_lane[j].total());
}

// Where the questions begin: the least interval of `width` 2^-24, aligned as the questions have it, that
// holds the root with certainty; answers to the questions before it are known. Newton's method in float32
// comes from the right, from `shift` on, until f is within `near` of 1; that is also what its sum may round
// (2^-24 per key of a lane, twice). f rises by at least 1 per unit of shift, so the root is within 2 near, in
// these units.
template <class Kind>
__device__ __forceinline__ int first_interval(const Entmax& entmax, Kind kind, const RowList& list,
                                              float shift, int& width, int lane) {
  const int near = 32 + list.count / 16, last = (1 << 24) - 1;
  float excess = 1;
#pragma unroll 1
  for (int step = 0; step < 12 && excess > static_cast<float>(near) * 0x1p-24f; ++step) {
    float sum = 0, slope = 0;
#pragma unroll 1
    for (int i = lane; i < list.count; i += 32) {
      const float u = list.values[i] + shift, slope_here = entmax.slope(kind, u);
      sum += fmaxf(u, 0.0f) * slope_here;
      slope += slope_here;
    }
    excess = arch::warp_sum(sum) - 1;
    slope = arch::warp_sum(slope);
    shift -= fmaxf(excess, 0.0f) / (entmax.beta * slope);
  }
  width = 1 << 24;
  if (excess > static_cast<float>(near) * 0x1p-24f) return 0;
  const int root = static_cast<int>(shift * 0x1p24f), low = max(root - 2 * near, 0),
            high = min(root + 2 * near, last);
  for (width = 1 << 9; low / width != high / width;) width *= 8;
  return low / width * width;
}

// The least shift, in units of 2^-24, at which f is 1 or more, and f there in units of 2^-40.
struct Root {
  int shift;
  int64_t weights;
};

// From each lane's own questions, 32 at a time: soon known where the list is short. Only where f never falls,
// rounding included, so that any order of questions has the same answer: powers are approximate.
template <class Kind>
__device__ __forceinline__ Root search_short(const Entmax& entmax, Kind kind, const RowList& list, int lane) {
  int low = 0;  // f(low) < 1 <= f(low + 32 step)
  int64_t weights = 0;
#pragma unroll 1
  for (int step = 1 << 19; step > 0; step = step == 16 ? 1 : step / 32) {
    const float shift = static_cast<float>(low + (lane + 1) * step) * 0x1p-24f;
    WeightSum sum;
#pragma unroll 4
    for (int i = 0; i < list.count; ++i) sum.add(weight_of(entmax, kind, list.values[i] + shift));
    const int below = __popc(__ballot_sync(kAllLanes, sum.total() < kOne));
    low += below * step;
    weights = __shfl_sync(kAllLanes, sum.total(), below);  // of low + step; none is below all 32
  }
  return {low + 1, weights};
}
constexpr int kShortList = 32;

// The shift is at most `most`. Of longer lists seven questions at a time leave an eighth of the interval.
template <class Kind>
__device__ __forceinline__ Root root_of(const Entmax& entmax, Kind kind, const RowList& list, float most,
                                        int lane) {
  if constexpr (!std::is_same_v<Kind, entmax::AnyAlpha>) {
    if (list.count <= kShortList) return search_short(entmax, kind, list, lane);
  }
  int width, low = first_interval(entmax, kind, list, most, width, lane);  // f(low) < 1 <= f(low + 8 step)
#pragma unroll 1
  for (int step = width / 8; step > 0; step /= 8) {
    float shifts[7];
    int64_t sums[7];
#pragma unroll
    for (int j = 0; j < 7; ++j) shifts[j] = static_cast<float>(low + (j + 1) * step) * 0x1p-24f;
    sum_weights(entmax, kind, list, shifts, sums, lane);
    int below = 0;
#pragma unroll
    for (int64_t sum : sums) below += sum < kOne ? 1 : 0;
    low += below * step;
  }
  int64_t sums[1];
  sum_weights(entmax, kind, list, {static_cast<float>(low + 1) * 0x1p-24f}, sums, lane);
  return {low + 1, sums[0]};
}

// The whole warp calls it. list: keys among which is the support; list.values: their scores. Leaves on it
// those that the row keeps, with p, whose values are then to be added. bound: what the threshold is not
// below. Returns false, and writes nothing, where the row keeps more than most_listed().
template <class T, int kDim>
__device__ bool solve_row(const Step& p, const Unit& unit, const Entmax& entmax, int row, RowList& list,
                          float largest, float bound, int lane) {
  const bool is_nan = !(entmax.gain > 0) || !(largest < INFINITY);
  if (is_nan || largest == -INFINITY) {
    write_unsolved<T, kDim>(p, unit, row, is_nan, lane);
    list.count = 0;
    return true;
  }
  for (int i = lane; i < list.count; i += 32) list.values[i] = entmax.gain * (list.values[i] - largest);
  __syncwarp();
  const float most = fminf(entmax.gain * (largest - bound), 1.0f);
  Root root{};
  entmax.visit([&](auto kind) { root = root_of(entmax, kind, list, most, lane); });
  const float shift = static_cast<float>(root.shift) * 0x1p-24f, inverse = inverse_of(root.weights);
  // Keep the support.
  int support = 0;
  for (int first = 0; first < list.count; first += 32) {
    const int entry = first + lane;
    const int key = entry < list.count ? list.keys[entry] : -1;
    const float u = entry < list.count ? list.values[entry] + shift : 0.0f;
    const int place = place_of(u > 0, lane, support);
    if (u > 0) {
      list.keys[place] = key;
      list.values[place] = entmax.weight(u) * inverse;
    }
  }
  __syncwarp();
  list.count = support <= most_listed(kDim) ? support : 0;
  if (list.count == 0) return false;
  const float z_max = entmax.gain * largest;
  write_results(p, unit, row, z_max - shift, z_max, support, lane);
  return true;
}

// Leaves rows, as bits, to the dense pass.
__device__ __forceinline__ void leave_rows(const Step& p, int unit, uint32_t rows) {
  atomicOr(&p.overflowed[unit], rows);
  if (p.outputs.counts != nullptr) p.outputs.counts[unit * 4 + 3] = 1;
}

// Adds the values of a block's rows and writes the outputs. `members` warps share a row, and the first of
// them has its list. slot: the row's place among the block's. remember(): called by a warp of each row. All
// threads call it.
template <class T, int kDim, class Remember>
__device__ __forceinline__ void add_values(const Step& p, const Unit& unit, int row, int slot, bool has_row,
                                           int members, RowList& list, int length, int32_t (&counts)[kRows],
                                           PartSums<kDim>* parts, const Remember& remember) {
  const int lane = static_cast<int>(threadIdx.x) % 32, member = static_cast<int>(threadIdx.x) / 32 % members;
  if (members == 1) {
    if (has_row && list.count > 0) write_values<T, kDim>(p, unit, row, list, length, lane);
    return remember();
  }
  if (has_row && member == 0 && lane == 0) counts[slot] = list.count;
  __syncthreads();
  if (has_row) {
    list.count = counts[slot];
    if (member == members - 1) remember();  // it has no part of a short list
    add_parts<T, kDim>(p, unit, list, member, members, length, lane, parts[slot]);
  }
  __syncthreads();
  if (has_row && member == 0 && list.count > 0)
    write_sums<T, kDim>(p, unit, row, parts[slot], parts_of(list.count, kDim), lane);
}

// What 32 segments in a row hold of a list's row, and of all rows of its unit: keys listed, and scored.
struct SegmentSums {
  float largest;
  int32_t above, listed, scored;
};
constexpr int kSegmentSums = (kMostTeam * kWarps + 2 + 31) / 32;  // of a row, at most

// A block's lists, of all the rows that it solves, and the sums of their values' parts.
template <int kKeys, int kDim>
struct Lists {
  static_assert(kKeys <= 32 * WeightSum::kMost);
  int32_t keys[kKeys];
  float values[kKeys];
  PartSums<kDim> parts[kRows / 2];  // of rows that warps share
  SegmentSums segments[kRows][kSegmentSums];
  int32_t counts[kRows];
};

// A unit that scores more keys than one of so many exactly takes the dense pass in its next step.
constexpr int kBroadShare = 2;

// Puts the segments' lists of a row together, in key order; `members` warps share the work. runs: the warps
// that have filled segments; sums: of the row, in shared memory. Returns whether the list holds them all;
// list.count and `largest` are set in each member; `candidates` in the first member of row 0: keys listed by
// the screen. recalls: the step's bounds are from memory, and may be poor. All threads of the block call it;
// has_row: whether the warp has one. A barrier must follow.
__device__ inline bool list_row(const Step& p, const Unit& unit, int row, bool has_row, int runs, int member,
                                int members, int capacity, int length, bool recalls,
                                SegmentSums (&sums)[kSegmentSums], RowList& list, float& largest,
                                int& candidates) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int segments = runs + 2, of_unit = unit.index * p.segments.count(), parts = (segments + 31) / 32;
  const int64_t of_row = int64_t{unit.index} * p.segments.total() * p.listed_rows + row;
  struct Segment {  // the lane's
    SegmentSums sums{-INFINITY, 0, 0, 0};
    int from = 0;  // where it begins, in entries
  };
  const auto load = [&](int part) {
    Segment s;
    const int segment = 32 * part + lane <= runs ? 32 * part + lane : p.segments.count() - 1;
    if (32 * part + lane >= segments) return s;
    const int at = of_unit + segment;
    const RowFound found = p.found[int64_t{at} * kRows + row];
    s.sums = {found.largest, found.above, 0, 0};
    if (row == 0) {
      s.sums.listed = p.counts[at];
      s.sums.scored = p.kept[at];
    }
    s.from = p.segments.first(segment);
    return s;
  };
  // Copies the keys of 32 segments to the list, from `place` on; end: of the lane's among them.
  const auto copy = [&](const Segment& s, int end, int place, int sharer, int sharers) {
    const int all = __shfl_sync(kAllLanes, end, 31), from = (s.from - (end - s.sums.above)) * p.listed_rows;
#pragma unroll 2
    for (int begin = 32 * sharer; begin < all; begin += 32 * sharers) {
      const int entry = begin + lane;
      int owner = 0;  // the first lane whose keys end behind the entry
#pragma unroll
      for (int lanes = 16; lanes > 0; lanes /= 2) {
        const int end_before = __shfl_sync(kAllLanes, end, owner + lanes - 1);
        owner += end_before <= entry ? lanes : 0;
      }
      const int64_t at = of_row + __shfl_sync(kAllLanes, from, owner) + int64_t{entry} * p.listed_rows;
      const int to = place + entry;
      if (entry < all && to < capacity) {
        list.keys[to] = p.row_keys[at];
        list.values[to] = p.scores[at];
      }
    }
  };

  SegmentSums of_lane{-INFINITY, 0, 0, 0};  // of some of the segments, each in one lane
  if (parts == 1) {                         // each warp reads all of them, and waits for none
    if (!has_row) return true;
    const Segment mine = load(0);
    const int end = sum_up_to(mine.sums.above, lane);
    list.count = __shfl_sync(kAllLanes, end, 31);
    copy(mine, end, 0, member, members);
    of_lane = mine.sums;
  } else {  // each warp takes some of the parts
    Segment mine;
    for (int part = has_row ? member : parts; part < parts; part += members) {
      const Segment segment = load(part);
      if (part == member) mine = segment;
      const SegmentSums& of_part = segment.sums;
      const SegmentSums all{arch::warp_max_or_nan(of_part.largest),
                            __reduce_add_sync(kAllLanes, of_part.above),
                            row == 0 ? __reduce_add_sync(kAllLanes, of_part.listed) : 0,
                            row == 0 ? __reduce_add_sync(kAllLanes, of_part.scored) : 0};
      if (lane == 0) sums[part] = all;
    }
    __syncthreads();
    if (!has_row) return true;
    static_assert(kSegmentSums <= 32);
    if (lane < parts) of_lane = sums[lane];
    const int end_of_lane = sum_up_to(of_lane.above, lane);
    list.count = __shfl_sync(kAllLanes, end_of_lane, 31);
#pragma unroll 1
    for (int part = member; part < parts; part += members) {
      const int place = __shfl_sync(kAllLanes, end_of_lane - of_lane.above, part);
      if (__shfl_sync(kAllLanes, of_lane.above, part) == 0) continue;
      if (part != member) mine = load(part);
      copy(mine, sum_up_to(mine.sums.above, lane), place, 0, 1);
    }
  }
  largest = arch::warp_max_or_nan(of_lane.largest);
  if (row == 0 && member == 0) {
    candidates = __reduce_add_sync(kAllLanes, of_lane.listed);
    const int scored = __reduce_add_sync(kAllLanes, of_lane.scored);
    if (lane == 0 && p.outputs.counts != nullptr) {
      p.outputs.counts[unit.index * 4 + 1] = candidates;
      p.outputs.counts[unit.index * 4 + 2] = scored;
    }
    if (lane == 0 && !recalls && scored > max(length / kBroadShare, most_listed(p.cache.head_dim)))
      remember_broad(p, unit.index, true);
  }
  return list.count <= capacity;
}

// Warps of a block that share one of so many rows.
__device__ __forceinline__ int members_of(int rows) {
  static_assert(kWarps == 8 && kRows == 8);
  return rows <= 1 ? 8 : rows <= 2 ? 4 : rows <= 4 ? 2 : 1;
}

// The rows of a unit are dealt to the team's blocks. All threads call it. length: NaN rows where it is below
// 0. recalls: its bounds are from memory. is_written: it leaves keys for the next step.
template <class T, int kDim, int kKeys>
__device__ void solve_rows(const Step& p, const Unit& unit, const Entmax (&entmax)[kRows],
                           const float (&bounds)[kRows], const Team& team, int length, int runs, bool recalls,
                           bool is_written, Lists<kKeys, kDim>& lists) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int rows = (unit.rows + team.size - 1) / team.size;  // of a block
  const int members = members_of(rows);
  const int slot = warp / members, row = team.rank + slot * team.size;
  const int capacity = kKeys / rows;
  RowList list{lists.keys + slot * capacity, lists.values + slot * capacity, 0};
  const bool has_row = slot < rows && row < unit.rows;
  float largest = -INFINITY;
  int candidates = 0;
  bool holds_all = list_row(p, unit, row, has_row, runs, warp % members, members, capacity, length, recalls,
                            lists.segments[slot], list, largest, candidates);
  __syncthreads();
  const bool leads = has_row && warp % members == 0;
  if (leads) {
    if (holds_all)
      holds_all =
          solve_row<T, kDim>(p, unit, entmax[row], row, list, length < 0 ? NAN : largest, bounds[row], lane);
    if (!holds_all) list.count = 0;
    if (!holds_all && lane == 0) leave_rows(p, unit.index, 1u << row);
    if (lane == 0 && row == 0 && recalls && was_poor(candidates, list.count * unit.rows, runs))
      atomicOr(&p.overflowed[unit.index], kPoorBit);
  }
  add_values<T, kDim>(p, unit, row, slot, has_row, members, list, length, lists.counts, lists.parts, [&] {
    if (has_row && list.count > 0 && is_written) remember_row(p, unit, row, list, lane);
  });
}

}  // namespace splash::gpu::decode
