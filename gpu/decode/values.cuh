#pragma once
// Outputs of a row whose keys a list holds: their values are added in parts, by places on the list, so that
// warps that share a row add in the same order as one that has it alone.

#include "gpu/decode/unit.cuh"

namespace splash::gpu::decode {

// A row's keys in key order, and of each gain (score - m), later p. A warp's own.
struct RowList {
  int32_t* keys;
  float* values;
  int count;
};

constexpr int kParts = kWarps;   // of a row's values, for warps that share it
constexpr int kValuesAhead = 4;  // loads of values on their way

// Entries of a list that a warp reads at a time. Part i has those at i, i + kParts, ... times as many.
constexpr int entries_at_once(int head_dim) {
  return kValuesAhead * 32 / (head_dim / 8);
}
// The parts that have any.
__device__ __forceinline__ int parts_of(int count, int head_dim) {
  return min((count + entries_at_once(head_dim) - 1) / entries_at_once(head_dim), kParts);
}

// The sum of p v over a part of the list: eight channels in each lane, 8 (lane % (kDim / 8)) on.
template <class T, int kDim>
__device__ __forceinline__ void add_part(const Step& p, const Unit& unit, const RowList& list, int part,
                                         int length, int lane, float (&sums)[8]) {
  constexpr int kLanes = kDim / 8, kTogether = 32 / kLanes;  // lanes per value, values per load
  const int mine = lane / kLanes, at = lane % kLanes * 8;
#pragma unroll
  for (float& sum : sums) sum = 0;
#pragma unroll 1
  for (int first = part * entries_at_once(kDim); first < list.count;
       first += kParts * entries_at_once(kDim)) {
    Packed8<T> values[kValuesAhead];
    float weights[kValuesAhead];
#pragma unroll
    for (int i = 0; i < kValuesAhead; ++i) {
      const int entry = first + i * kTogether + mine;
      const T* value =
          entry < list.count ? unit.key_of<T>(p, p.cache.values, list.keys[entry], length) : nullptr;
      weights[i] = value == nullptr ? 0 : list.values[entry];
      values[i] = value == nullptr ? Packed8<T>{} : load_value(value + at);
    }
#pragma unroll
    for (int i = 0; i < kValuesAhead; ++i) add_value<T>(sums, weights[i], values[i]);
  }
#pragma unroll
  for (int lanes = kLanes; lanes < 32; lanes *= 2) {
#pragma unroll
    for (float& sum : sums) sum += __shfl_xor_sync(kAllLanes, sum, lanes);
  }
}

// Sums of a row's parts, in a block's shared memory.
template <int kDim>
using PartSums = float[kParts][kDim];

// The warp's parts of a row that `members` warps share; it is the member-th.
template <class T, int kDim>
__device__ __forceinline__ void add_parts(const Step& p, const Unit& unit, const RowList& list, int member,
                                          int members, int length, int lane, PartSums<kDim>& parts) {
#pragma unroll 1
  for (int part = member; part < parts_of(list.count, kDim); part += members) {
    float sums[8];
    add_part<T, kDim>(p, unit, list, part, length, lane, sums);
    if (lane < kDim / 8) {
      auto* const to = reinterpret_cast<float4*>(parts[part] + 8 * lane);
      to[0] = {sums[0], sums[1], sums[2], sums[3]};
      to[1] = {sums[4], sums[5], sums[6], sums[7]};
    }
  }
}

// The same, and the output, where a warp has a row to itself.
template <class T, int kDim>
__device__ __forceinline__ void write_values(const Step& p, const Unit& unit, int row, const RowList& list,
                                             int length, int lane) {
  float all[8] = {};
#pragma unroll 1
  for (int part = 0; part < parts_of(list.count, kDim); ++part) {
    float sums[8];
    add_part<T, kDim>(p, unit, list, part, length, lane, sums);
#pragma unroll
    for (int i = 0; i < 8; ++i) all[i] += sums[i];
  }
  if (lane < kDim / 8) store_output<T>(p, unit.row_of<InProducts<T>>(p, p.out, row) + 8 * lane, all);
}

// Writes a row's output, the sum of its first `count` parts. One warp calls it.
template <class T, int kDim>
__device__ __forceinline__ void write_sums(const Step& p, const Unit& unit, int row,
                                           const PartSums<kDim>& parts, int count, int lane) {
  if (lane >= kDim / 8) return;
  float sums[8] = {};
#pragma unroll 1
  for (int part = 0; part < count; ++part) {
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[i] += parts[part][8 * lane + i];
  }
  store_output<T>(p, unit.row_of<InProducts<T>>(p, p.out, row) + 8 * lane, sums);
}

// One output value in all channels, for rows without keys and for bad ones.
template <class T, int kDim>
__device__ __forceinline__ void write_row(const Step& p, const Unit& unit, int row, float value, int lane) {
  float values[8];
#pragma unroll
  for (float& x : values) x = value;
  if (lane < kDim / 8) store_output<T>(p, unit.row_of<InProducts<T>>(p, p.out, row) + 8 * lane, values);
}

__device__ __forceinline__ void write_results(const Step& p, const Unit& unit, int row, float tau,
                                              float maximum, int support, int lane) {
  if (lane != 0) return;
  const int64_t at = (int64_t{unit.sequence} * p.q_heads + unit.head(p, row)) * p.q_len + unit.query(p, row);
  if (p.outputs.tau != nullptr) p.outputs.tau[at] = tau;
  if (p.outputs.maximum != nullptr) p.outputs.maximum[at] = maximum;
  if (p.outputs.support != nullptr) p.outputs.support[at] = support;
}

// A row without keys, or a bad one.
template <class T, int kDim>
__device__ void write_unsolved(const Step& p, const Unit& unit, int row, bool is_nan, int lane) {
  write_row<T, kDim>(p, unit, row, is_nan ? NAN : 0.0f, lane);
  write_results(p, unit, row, is_nan ? NAN : INFINITY, is_nan ? NAN : -INFINITY, 0, lane);
}

}  // namespace splash::gpu::decode
