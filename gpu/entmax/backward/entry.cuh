#pragma once
// Entries of the support as the row pass hands them to the column pass. An entry has all that the column pass
// needs but dO and Q.

#include <cstdint>
#include <type_traits>

#include "gpu/entmax/backward/problem.h"

namespace splash::gpu::entmax::backward {

struct Entry {
  uint32_t row;  // number among the rows that may attend to the key
  float p, ds;
};

// Drops the last `dropped` bits of a float's bits, rounding to the nearest. bits is at most `most`, and the
// rounding never overflows it: NaN stays NaN.
__device__ __forceinline__ uint32_t rounded_bits(uint32_t bits, int dropped, uint32_t most) {
  const uint32_t half = 1u << dropped >> 1;
  return (min(bits, most - half) + half) >> dropped;
}

// An entry in memory, for elements of type T. For 16-bit elements it takes 8 bytes: row, p and ds, from the
// highest bit down. The row takes the bits that it needs; p (without its sign bit) and ds share the others.
// With at most 2^16 rows that may attend to a key, their relative rounding error is below 2^-16, a 128th of
// bf16's; with 2^20 it is below 2^-14.
template <class T>
struct StoredEntry {
  uint64_t word;

  StoredEntry() = default;
  __device__ StoredEntry(const BackwardProblem& p, const Entry& entry) {
    const uint32_t p_bits = rounded_bits(__float_as_uint(entry.p) << 1, 32 - p.p_bits, 0xFFFFFFFFu);
    const uint32_t ds = __float_as_uint(entry.ds), dropped = 32 - p.ds_bits;
    const uint32_t ds_bits =
        rounded_bits(ds & 0x7FFFFFFFu, dropped, 0x7FFFFFFFu) | ds >> 31 << (31 - dropped);
    word = uint64_t{entry.row} << (p.p_bits + p.ds_bits) | uint64_t{p_bits} << p.ds_bits | ds_bits;
  }
  __device__ Entry entry(const BackwardProblem& p) const {
    return {.row = static_cast<uint32_t>(word >> (p.p_bits + p.ds_bits)),
            .p = __uint_as_float(static_cast<uint32_t>(word >> p.ds_bits) << (32 - p.p_bits) >> 1),
            .ds = __uint_as_float(static_cast<uint32_t>(word) << (32 - p.ds_bits))};
  }
};
template <>
struct StoredEntry<float> {
  Entry whole;

  StoredEntry() = default;
  __device__ StoredEntry(const BackwardProblem& /*p*/, const Entry& entry) : whole(entry) {}
  __device__ Entry entry(const BackwardProblem& /*p*/) const { return whole; }
};
static_assert(sizeof(StoredEntry<float>) == entry_bytes(Dtype::f32));
static_assert(sizeof(StoredEntry<uint16_t>) == entry_bytes(Dtype::f16));

template <class T>
__device__ StoredEntry<T>* entries_of(const BackwardProblem& p) {
  return static_cast<StoredEntry<T>*>(p.entries);
}

// How many entries come before the key's, over all keys; and before those of a slice of its rows.
__device__ __forceinline__ uint32_t begin_of(const BackwardProblem& p, uint32_t key, uint32_t slice = 0) {
  return key < p.keys ? p.key_blocks[key / kKeyBlock] + p.key_places[slice * p.key_stride + key]
                      : p.key_blocks[(p.keys + kKeyBlock - 1) / kKeyBlock];
}
// The first of the key's entries whose slice is the row's or a later one. row: among the key's.
__device__ __forceinline__ uint32_t begin_of_row(const BackwardProblem& p, uint32_t key, uint32_t row) {
  const uint32_t slice = row >> p.slice_bits;
  return slice < p.slices ? begin_of(p, key, slice) : begin_of(p, key + 1);
}

}  // namespace splash::gpu::entmax::backward
