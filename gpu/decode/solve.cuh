#pragma once
// Thresholds and outputs from exact scores. solve_kernel takes a row's keys from the unit's list;
// fallback_kernel, for units whose lists overflowed, scores every key of the unit again.
//
// The same bits for any list that contains the support, whatever else it holds: with m the largest score, u =
// gain (score - m) + shift. f(shift) = sum of u_+^beta is summed in integers, so neither order nor keys with
// u <= 0 matter. shift is found by bisection on multiples of 2^-24, which asks only whether f >= 1. Below tau
// the support alone says yes; from tau on no other key adds to f. So each answer is a matter of the support.
// Values are added in key order among the keys with p > 0.

#include "gpu/decode/unit.cuh"
#include "gpu/entmax/schedule/launch.cuh"

namespace splash::gpu::decode {

// A row's keys in key order, and of each gain (score - m), later p. A warp's own.
struct RowList {
  int32_t* keys;
  float* values;
  int count;
};

template <class Kind>
__device__ __forceinline__ float sum_of_weights(const Entmax& entmax, Kind kind, const RowList& list,
                                                float shift, int lane) {
  int64_t sum = 0;
  for (int i = lane; i < list.count; i += 32) {
    const float u = list.values[i] + shift;
    sum += static_cast<int64_t>(fmaxf(u, 0.0f) * entmax.slope(kind, u) * 0x1p40f);
  }
  if (list.count <= 4096) {  // a lane's sum is below 2^47: the two halves of all lanes' fit 32 bits
    const int low = __reduce_add_sync(kAllLanes, static_cast<int>(sum & 0xFFFFFF)),
              high = __reduce_add_sync(kAllLanes, static_cast<int>(sum >> 24));
    sum = (int64_t{high} << 24) + low;
  } else {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(kAllLanes, sum, lanes);
  }
  return static_cast<float>(static_cast<double>(sum) * 0x1p-40);
}

// z_max - tau, rounded up to a multiple of 2^-24.
__device__ __forceinline__ float shift_of(const Entmax& entmax, const RowList& list, int lane) {
  int low = 0, high = 1 << 24;  // f(low) < 1 <= f(high)
  entmax.visit([&](auto kind) {
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      const bool reaches =
          sum_of_weights(entmax, kind, list, static_cast<float>(middle) * 0x1p-24f, lane) >= 1;
      (reaches ? high : low) = middle;
    }
  });
  return static_cast<float>(high) * 0x1p-24f;
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

// The whole warp calls it. list.values: scores less than 1 below the largest in z, among them the support.
template <class T, int kDim>
__device__ void solve_row(const Step& p, const Unit& unit, int row, RowList list, float largest, int length,
                          int lane) {
  const Entmax entmax = unit.entmax(p, row);
  const bool is_nan = !(entmax.gain > 0) || !(largest < INFINITY);
  if (is_nan || largest == -INFINITY) {
    write_row<T, kDim>(p, unit, row, is_nan ? NAN : 0.0f, lane);
    write_results(p, unit, row, is_nan ? NAN : INFINITY, is_nan ? NAN : -INFINITY, 0, lane);
    return;
  }
  for (int i = lane; i < list.count; i += 32) list.values[i] = entmax.gain * (list.values[i] - largest);
  __syncwarp();
  const float shift = shift_of(entmax, list, lane);
  float sum = 0;
  entmax.visit([&](auto kind) { sum = sum_of_weights(entmax, kind, list, shift, lane); });
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

constexpr int kSolveThreads = 32 * kRows;

// One block per unit, one warp per row.
template <class T, int kDim>
__global__ void __launch_bounds__(kSolveThreads) solve_kernel(const __grid_constant__ Step p) {
  entmax::wait_for_kernels_before();
  __shared__ int32_t keys[kRows][kListedRow];
  __shared__ float values[kRows][kListedRow];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, row = thread / 32;
  const Unit unit(p, static_cast<int>(blockIdx.x));
  const int length = p.lengths[unit.index], segments = p.segments.count();
  const int64_t list = int64_t{unit.index} * p.segments.total();

  // Did a segment overflow? Count what was listed and what was scored.
  int candidates = 0, rescored = 0;
  bool overflow = false;
  for (int segment = thread; segment < segments && length > 0; segment += kSolveThreads) {
    const int at = unit.index * segments + segment, count = p.counts[at];
    overflow |= count > p.segments.capacity(segment);
    candidates += count;
    rescored += p.kept[at];
  }
  // List the row's keys above its last cutoff, in key order.
  float largest = -INFINITY;
  RowList mine{keys[row], values[row], 0};
  const bool has_row = row < unit.rows;
  if (has_row && length > 0) {
    const Entmax entmax = unit.entmax(p, row);
    const float* maxima = p.maxima + int64_t{unit.index} * segments * kRows + row;
    for (int segment = lane; segment < segments; segment += 32)
      largest = arch::larger_or_nan(largest, maxima[segment * kRows]);
    largest = arch::warp_max_or_nan(largest);
    const float cutoff = cutoff_of(entmax, largest, p.bounds[unit.index * kRows + row]);
    for (int first = 0; first < segments && cutoff < INFINITY; first += 32) {
      const int segment = first + lane;
      unsigned wanted =
          __ballot_sync(kAllLanes, segment < segments && maxima[min(segment, segments - 1) * kRows] > cutoff);
      for (; wanted != 0; wanted &= wanted - 1) {
        const int now = first + __ffs(static_cast<int>(wanted)) - 1;
        const int kept = p.kept[unit.index * segments + now];
        const int64_t from = list + p.segments.first(now);
        for (int begin = 0; begin < kept; begin += 32) {
          const int entry = begin + lane;
          const float score = entry < kept ? p.scores[(from + entry) * p.listed_rows + row] : -INFINITY;
          const int place = place_of(score > cutoff, lane, mine.count);
          if (score > cutoff && place < kListedRow) {
            mine.keys[place] = p.keys[from + entry];
            mine.values[place] = score;
          }
        }
      }
    }
    overflow |= mine.count > kListedRow;
    __syncwarp();
  }
  overflow = __syncthreads_or(overflow ? 1 : 0) != 0;
  if (p.outputs.counts != nullptr && thread < 4) p.outputs.counts[unit.index * 4 + thread] = 0;
  __syncthreads();
  if (p.outputs.counts != nullptr) {
    candidates = __reduce_add_sync(kAllLanes, candidates);
    rescored = __reduce_add_sync(kAllLanes, rescored);
    if (lane == 0) {
      atomicAdd(&p.outputs.counts[unit.index * 4 + 1], candidates);
      atomicAdd(&p.outputs.counts[unit.index * 4 + 2], rescored);
    }
    if (thread == 0) {
      const Ranges ranges(max(length, 0), p.cache.page_size);
      p.outputs.counts[unit.index * 4] = max(ranges.tail - kHeadKeys, 0);
      p.outputs.counts[unit.index * 4 + 3] = overflow ? 1 : 0;
    }
  }
  if (thread == 0) p.overflowed[unit.index] = overflow ? 1 : 0;
  if (overflow || !has_row) return;
  solve_row<T, kDim>(p, unit, row, mine, length < 0 ? NAN : largest, length, lane);
}

// Each block has room for all scores of a unit and takes units in turn.
template <class T, int kDim>
__global__ void __launch_bounds__(kSolveThreads) fallback_kernel(const __grid_constant__ Step p) {
  entmax::wait_for_kernels_before();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int64_t room = int64_t{p.table.width} * p.cache.page_size;
  for (int index = static_cast<int>(blockIdx.x); index < p.units; index += p.fallback_blocks) {
    if (p.overflowed[index] == 0) continue;
    const Unit unit(p, index);
    const int length = p.lengths[index];
    float* scores = p.all_scores + int64_t{blockIdx.x} * p.listed_rows * room;
    const Queries<T, kDim> q(p, unit, lane);
    for (int first = 16 * warp; first < length; first += 16 * kRows) {
      const int low = first + lane / 4;
      float d[4];
      score_visible<T, kDim>(p, unit, q, low, low + 8, length, lane, d);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = 2 * (lane % 4) + i % 2, key = low + i / 2 * 8;
        if (row < unit.rows && key < length) scores[row * room + key] = d[i];
      }
    }
    __syncthreads();
    if (warp < unit.rows) {
      float* values = scores + warp * room;
      int32_t* keys = p.all_keys + (int64_t{blockIdx.x} * p.listed_rows + warp) * room;
      float largest = -INFINITY;
      for (int key = lane; key < length; key += 32) largest = arch::larger_or_nan(largest, values[key]);
      largest = arch::warp_max_or_nan(largest);
      const float cutoff = cutoff_of(unit.entmax(p, warp), largest, -INFINITY);
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
      solve_row<T, kDim>(p, unit, warp, mine, largest, length, lane);
    }
    __syncthreads();  // the next unit's scores overwrite these
  }
}

}  // namespace splash::gpu::decode
