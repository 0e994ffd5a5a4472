#pragma once
// Thresholds and outputs from exact scores. solve_rows takes a row's keys from the unit's list;
// fallback_kernel, for rows with more keys than a block's list holds, scores every key again.
//
// The same bits for any list that contains the support, whatever else it holds: with m the largest score, u =
// gain (score - m) + shift. f(shift) = sum of u_+^beta is summed in integers, so neither order nor keys with
// u <= 0 matter. shift is found by bisection on multiples of 2^-24, which asks only whether f >= 1. Below tau
// the support alone says yes; from tau on no other key adds to f. So each answer is a matter of the support.
// Values are added in key order among the keys with p > 0.

#include "gpu/decode/team.cuh"
#include "gpu/decode/unit.cuh"
#include "gpu/entmax/schedule/launch.cuh"

namespace splash::gpu::decode {

// A row's keys in key order, and of each gain (score - m), later p. A warp's own.
struct RowList {
  int32_t* keys;
  float* values;
  int count;
};

constexpr int64_t kOne = int64_t{1} << 40;

// The sums of u_+^beta for several shifts, in units of 2^-40; from 2 on a sum may be too small.
template <int kShifts, class Kind>
__device__ __forceinline__ void sum_weights(const Entmax& entmax, Kind kind, const RowList& list,
                                            const float (&shifts)[kShifts], int64_t (&sums)[kShifts],
                                            int lane) {
#pragma unroll
  for (int64_t& sum : sums) sum = 0;
#pragma unroll 1
  for (int i = lane; i < list.count; i += 32) {
    const float value = list.values[i];
#pragma unroll
    for (int j = 0; j < kShifts; ++j) {
      const float u = value + shifts[j];
      sums[j] += static_cast<int64_t>(fmaxf(u, 0.0f) * entmax.slope(kind, u) * static_cast<float>(kOne));
    }
  }
#pragma unroll
  for (int64_t& sum : sums) {  // in halves, of which 32 lanes' sums fit 32 bits
    sum = min(sum, 2 * kOne);
    const int low = __reduce_add_sync(kAllLanes, static_cast<int>(sum & 0xFFFFFF)),
              high = __reduce_add_sync(kAllLanes, static_cast<int>(sum >> 24));
    sum = (int64_t{high} << 24) + low;
  }
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

// z_max - tau, rounded up to a multiple of 2^-24, which is at most `most`: seven questions at a time leave an
// eighth of the interval.
__device__ __forceinline__ float shift_of(const Entmax& entmax, const RowList& list, float most, int lane) {
  int low = 0;  // f(low) < 1 <= f(low + 8 step)
  entmax.visit([&](auto kind) {
    int width;
    low = first_interval(entmax, kind, list, most, width, lane);
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
  });
  return static_cast<float>(low + 1) * 0x1p-24f;
}

// Writes out = sum of p v over the list, with 16 bytes of a value per lane and load.
template <class T, int kDim>
__device__ __forceinline__ void write_values(const Step& p, const Unit& unit, int row, const RowList& list,
                                             int length, int lane) {
  constexpr int kLanes = kDim / 8, kTogether = 32 / kLanes,
                kAhead = 4;  // lanes per value, values per load, loads
  const int mine = lane / kLanes, at = lane % kLanes * 8;
  float sums[8] = {};
  for (int first = 0; first < list.count; first += kTogether * kAhead) {
    uint4 values[kAhead];
    float weights[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int entry = first + i * kTogether + mine;
      const T* value =
          entry < list.count ? unit.key_of<T>(p, p.cache.values, list.keys[entry], length) : nullptr;
      weights[i] = value == nullptr ? 0 : list.values[entry];
      values[i] = value == nullptr ? uint4{} : entmax::load8(value + at);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) entmax::add_scaled<T>(sums, weights[i], values[i]);
  }
#pragma unroll
  for (int lanes = kLanes; lanes < 32; lanes *= 2) {
#pragma unroll
    for (float& sum : sums) sum += __shfl_xor_sync(kAllLanes, sum, lanes);
  }
  if (mine == 0) entmax::store8(unit.row_of<T>(p, p.out, row) + at, entmax::rounded<T>(sums));
}

// One output value in all channels, for rows without keys and for bad ones.
template <class T, int kDim>
__device__ __forceinline__ void write_row(const Step& p, const Unit& unit, int row, float value, int lane) {
  float values[8];
#pragma unroll
  for (float& x : values) x = value;
  if (lane < kDim / 8) entmax::store8(unit.row_of<T>(p, p.out, row) + 8 * lane, entmax::rounded<T>(values));
}

__device__ __forceinline__ void write_results(const Step& p, const Unit& unit, int row, float tau,
                                              float maximum, int support, int lane) {
  if (lane != 0) return;
  const int64_t at = (int64_t{unit.sequence} * p.q_heads + unit.head(p, row)) * p.q_len + unit.query(p, row);
  if (p.outputs.tau != nullptr) p.outputs.tau[at] = tau;
  if (p.outputs.maximum != nullptr) p.outputs.maximum[at] = maximum;
  if (p.outputs.support != nullptr) p.outputs.support[at] = support;
}

// The whole warp calls it. list: keys among which is the support; list.values: their scores. bound: what the
// threshold is not below.
template <class T, int kDim>
__device__ void solve_row(const Step& p, const Unit& unit, const Entmax& entmax, int row, RowList list,
                          float largest, float bound, int length, int lane) {
  const bool is_nan = !(entmax.gain > 0) || !(largest < INFINITY);
  if (is_nan || largest == -INFINITY) {
    write_row<T, kDim>(p, unit, row, is_nan ? NAN : 0.0f, lane);
    write_results(p, unit, row, is_nan ? NAN : INFINITY, is_nan ? NAN : -INFINITY, 0, lane);
    return;
  }
  for (int i = lane; i < list.count; i += 32) list.values[i] = entmax.gain * (list.values[i] - largest);
  __syncwarp();
  const float shift = shift_of(entmax, list, fminf(entmax.gain * (largest - bound), 1.0f), lane);
  float sum = 0;
  entmax.visit([&](auto kind) {
    int64_t sums[1];
    sum_weights(entmax, kind, list, {shift}, sums, lane);
    sum = static_cast<float>(static_cast<double>(sums[0]) / kOne);
  });
  // Keep the support.
  int support = 0;
  for (int first = 0; first < list.count; first += 32) {
    const int entry = first + lane;
    const int key = entry < list.count ? list.keys[entry] : -1;
    const float u = entry < list.count ? list.values[entry] + shift : 0.0f;
    const int place = place_of(u > 0, lane, support);
    if (u > 0) {
      list.keys[place] = key;
      list.values[place] = entmax.weight(u) / sum;
    }
  }
  __syncwarp();
  list.count = support;
  write_values<T, kDim>(p, unit, row, list, length, lane);
  const float z_max = entmax.gain * largest;
  write_results(p, unit, row, z_max - shift, z_max, support, lane);
}

// Scores at or below this have p = 0: they are 1 or more below the largest, in z, or at the certified bound.
__device__ __forceinline__ float cutoff_of(const Entmax& entmax, float largest, float bound) {
  return fmaxf(bound, largest - (1 + 0x1p-18f * (1 + entmax.gain * fabsf(largest))) / entmax.gain);
}

// A block's lists, of all the rows that it solves.
template <int kKeys>
struct Lists {
  int32_t keys[kKeys];
  float values[kKeys];
};

// Puts the segments' lists of a row together, in key order; `members` warps share the work. runs: the warps
// that have filled segments. Returns whether the list holds them all; list.count and `largest` are set in
// each member.
__device__ inline bool list_row(const Step& p, const Unit& unit, int row, int runs, int member, int members,
                                int capacity, RowList& list, float& largest) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int segments = runs + 2, of_unit = unit.index * p.segments.count();
  const int64_t of_row = int64_t{unit.index} * p.segments.total() * p.listed_rows + row;
  const bool counts = row == 0 && member == 0 && p.outputs.counts != nullptr;
  int candidates = 0, rescored = 0;
#pragma unroll 1
  for (int first = 0; first < segments; first += 32) {
    RowFound found{-INFINITY, 0};
    int from = 0;
    if (first + lane < segments) {
      const int segment = first + lane <= runs ? first + lane : p.segments.count() - 1;
      const int at = of_unit + segment;
      found = p.found[int64_t{at} * kRows + row];
      from = p.segments.first(segment) * p.listed_rows;
      if (counts) {
        candidates += p.counts[at];
        rescored += p.kept[at];
      }
    }
    largest = arch::larger_or_nan(largest, found.largest);
    int end = found.above;  // of the lane's keys among these segments'
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      const int before = __shfl_up_sync(kAllLanes, end, lanes);
      end += lane >= lanes ? before : 0;
    }
    from -= (end - found.above) * p.listed_rows;
    const int place = list.count, all = __shfl_sync(kAllLanes, end, 31);
    list.count += all;
    if (first / 32 % members != member) continue;
#pragma unroll 2
    for (int begin = 0; begin < all; begin += 32) {
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
  }
  largest = arch::warp_max_or_nan(largest);
  if (row == 0 && member == 0 && p.outputs.counts != nullptr) {
    candidates = __reduce_add_sync(kAllLanes, candidates);
    rescored = __reduce_add_sync(kAllLanes, rescored);
    if (lane == 0) {
      p.outputs.counts[unit.index * 4 + 1] = candidates;
      p.outputs.counts[unit.index * 4 + 2] = rescored;
    }
  }
  return list.count <= capacity;
}

// The rows of a unit are dealt to the team's blocks. All threads call it. length: NaN rows where it is below
// 0.
template <class T, int kDim, int kKeys>
__device__ void solve_rows(const Step& p, const Unit& unit, const Entmax (&entmax)[kRows],
                           const float (&bounds)[kRows], const Team& team, int length, int runs,
                           Lists<kKeys>& lists) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int rows = (unit.rows + team.size - 1) / team.size;  // of a block
  const int members = rows <= 1 ? 8 : rows <= 2 ? 4 : rows <= 4 ? 2 : 1;
  static_assert(kWarps == 8);
  const int slot = warp / members, row = team.rank + slot * team.size;
  const int capacity = kKeys / rows;
  RowList list{lists.keys + slot * capacity, lists.values + slot * capacity, 0};
  const bool has_row = slot < rows && row < unit.rows;
  bool holds_all = true;
  float largest = -INFINITY;
  if (has_row) holds_all = list_row(p, unit, row, runs, warp % members, members, capacity, list, largest);
  __syncthreads();
  if (!has_row || warp % members != 0) return;
  if (holds_all)
    return solve_row<T, kDim>(p, unit, entmax[row], row, list, length < 0 ? NAN : largest, bounds[row],
                              length, lane);
  if (lane == 0) {
    atomicOr(&p.overflowed[unit.index], 1u << row);
    if (p.outputs.counts != nullptr) p.outputs.counts[unit.index * 4 + 3] = 1;
  }
}

// Each block has room for all scores of a unit and takes units in turn.
template <class T, int kDim>
__global__ void __launch_bounds__(kThreads) fallback_kernel(const __grid_constant__ Step p) {
  entmax::wait_for_kernels_before();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int64_t room = int64_t{p.table.width} * p.cache.page_size;
  for (int index = static_cast<int>(blockIdx.x); index < p.units; index += p.fallback_blocks) {
    const uint32_t rows = p.overflowed[index];
    if (rows == 0) continue;
    const Unit unit(p, index);
    const int length = p.table.lengths[unit.sequence];
    float* scores = p.all_scores + int64_t{blockIdx.x} * p.listed_rows * room;
    __shared__ HeldQueries<T, kDim> held;
    for (int at = thread; at < held.kLoads; at += kThreads) held.store(at, held.load(p, unit, at));
    __syncthreads();
    const Queries<T, kDim> q(held, lane);
    const Visible sees(p, unit, length, lane);
    for (int first = 16 * warp; first < length; first += 16 * kRows) {
      const int low = first + lane / 4;
      ChosenKeys<T, kDim> keys;
      keys.load(p, unit, low, low + 8, length, lane);
      float d[4];
      keys.score(q, sees, d);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = 2 * (lane % 4) + i % 2, key = low + i / 2 * 8;
        if (row < unit.rows && key < length) scores[row * room + key] = d[i];
      }
    }
    __syncthreads();
    if ((rows >> warp & 1) != 0) {
      float* values = scores + warp * room;
      int32_t* keys = p.all_keys + (int64_t{blockIdx.x} * p.listed_rows + warp) * room;
      float largest = -INFINITY;
      for (int key = lane; key < length; key += 32) largest = arch::larger_or_nan(largest, values[key]);
      largest = arch::warp_max_or_nan(largest);
      const Entmax entmax = unit.entmax(p, warp);
      const float cutoff = cutoff_of(entmax, largest, -INFINITY);
      RowList mine{keys, values, 0};
      for (int first = 0; first < length; first += 32) {
        const int key = first + lane;
        const float score = key < length ? values[key] : -INFINITY;
        const int place = place_of(score > cutoff, lane, mine.count);
        if (score > cutoff) {
          mine.keys[place] = key;
          mine.values[place] = score;
        }
      }
      __syncwarp();
      solve_row<T, kDim>(p, unit, entmax, warp, mine, largest, -INFINITY, length, lane);
    }
    __syncthreads();  // the next unit's scores overwrite these
  }
}

}  // namespace splash::gpu::decode
