#pragma once
// A group of kLanes lanes holds a vector of head_dim elements, 8 per lane; a warp is 32 / kLanes groups.
// Groups gather the rows of K and V (or Q and dO) that their entries name, with several loads in flight.
//
// Entries come in chunks of 8: lane i of a group owns entry i * 8 / kLanes of the chunk, so that kLanes / 8
// lanes own the same one. An owner holds its entry's key, weight and product.

#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/error.h"
#include "gpu/arch/mma.cuh"
#include "gpu/entmax/backward/row_tile.cuh"

namespace splash::gpu::entmax::backward {

constexpr int kChunk = 8;

// 8 elements as they lie in memory.
template <class T>
struct Packed {
  uint4 part[sizeof(T) / 2];
};

template <class T>
__device__ __forceinline__ void unpack(const Packed<T>& packed, float (&x)[8]) {
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T)) / 2; ++i) {
    const uint32_t words[4] = {packed.part[i].x, packed.part[i].y, packed.part[i].z, packed.part[i].w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (std::is_same_v<T, float>) {
        x[4 * i + j] = __uint_as_float(words[j]);
      } else if constexpr (std::is_same_v<T, __half>) {
        const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&words[j]));
        x[2 * j] = pair.x;
        x[2 * j + 1] = pair.y;
      } else {
        x[2 * j] = __uint_as_float(words[j] << 16);
        x[2 * j + 1] = __uint_as_float(words[j] & 0xFFFF0000u);
      }
    }
  }
}

template <class T, int kLanes>
struct Group {
  static constexpr int kGroups = 32 / kLanes;                       // of a warp
  static constexpr int kCopies = kLanes / kChunk;                   // lanes that own the same entry
  static constexpr int kFlight = std::is_same_v<T, float> ? 2 : 4;  // rows in flight
  // Whether what no group of the warp has left is left out of a flight. Where a warp has two groups or one,
  // it costs more than it saves.
  static constexpr bool kLeavesOut = kGroups > 2;
  int lane;  // in the group
  uint32_t head_dim;

  __device__ explicit Group(const BackwardProblem& p) : lane(threadIdx.x % kLanes), head_dim(p.head_dim) {}

  __device__ bool active() const { return lane * 8u < head_dim; }  // the lane holds elements
  __device__ uint32_t owned() const { return lane / kCopies; }     // its entry of a chunk
  __device__ bool first_copy() const { return lane % kCopies == 0; }

  // The address of the lane's part of row 0 of a matrix [rows, head_dim]. Lanes past head_dim read what the
  // last lane inside it reads: an address that is always valid is cheaper than a condition on each load.
  __device__ const char* part_of(const void* matrix) const {
    const char* part = static_cast<const char*>(matrix) + min(lane * 8u, head_dim - 8) * sizeof(T);
    asm("" : "+l"(part));  // keeps the sum in a register, so that a row's address is one multiply-add
    return part;
  }
  __device__ Packed<T> load(const char* part, uint32_t row) const {
    const auto* const from = reinterpret_cast<const uint4*>(part + uint64_t{row} * row_bytes());
    Packed<T> packed;
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(T)) / 2; ++i) packed.part[i] = __ldg(from + i);
    return packed;
  }
  __device__ void store(void* matrix, uint32_t row, const float (&x)[8]) const {
    if (!active()) return;
    auto* const to =
        reinterpret_cast<uint4*>(const_cast<char*>(part_of(matrix)) + uint64_t{row} * row_bytes());
    if constexpr (std::is_same_v<T, float>) {
      to[0] = {__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3])};
      to[1] = {__float_as_uint(x[4]), __float_as_uint(x[5]), __float_as_uint(x[6]), __float_as_uint(x[7])};
    } else {
      *to = {arch::pack_pair<T>(x[0], x[1]), arch::pack_pair<T>(x[2], x[3]), arch::pack_pair<T>(x[4], x[5]),
             arch::pack_pair<T>(x[6], x[7])};
    }
  }

  // Reads a row; zeros in the lanes past head_dim.
  __device__ void read_vector(const void* matrix, uint32_t row, float (&x)[8]) const {
    unpack(load(part_of(matrix), row), x);
    if (active()) return;
#pragma unroll
    for (int d = 0; d < 8; ++d) x[d] = 0;
  }

  // All lanes of the warp call start, products and add_rows together. row: the matrix's row that the lane's
  // entry names; it must be a valid row also where the lane owns no entry. most: the most entries that any
  // group of the warp has left, from this chunk on.

  // kFlight rows of a chunk, being loaded.
  struct Flight {
    Packed<T> rows[kFlight];
  };
  __device__ Flight start(const char* part, uint32_t row, uint32_t most, int first = 0) const {
    Flight flight;
#pragma unroll
    for (int i = 0; i < kFlight; ++i) {
      const uint32_t of_entry = from_owner(row, first + i);
      if (i == 0 || is_left(first + i, most)) flight.rows[i] = load(part, of_entry);
    }
    return flight;
  }

  // <vector, row> of the lane's entry.
  __device__ float products(const char* part, uint32_t row, uint32_t most, const float (&vector)[8]) const {
    float sums[kChunk] = {};
#pragma unroll
    for (int first = 0; first < kChunk; first += kFlight) {
      if (first >= static_cast<int>(most)) break;
      const Flight flight = start(part, row, most, first);
#pragma unroll
      for (int i = 0; i < kFlight; ++i) {
        if (!is_left(first + i, most)) break;
        float x[8];
        unpack(flight.rows[i], x);
#pragma unroll
        for (int d = 0; d < 8; ++d) sums[first + i] = fmaf(x[d], vector[d], sums[first + i]);
      }
    }
    return sum_for_owner(sums);
  }

  // sum += weight * row, over the entries of the chunk. flight: its first rows, from start.
  __device__ void add_rows(Flight flight, const char* part, uint32_t row, float weight, uint32_t most,
                           float (&sum)[8]) const {
#pragma unroll
    for (int first = 0; first < kChunk; first += kFlight) {
      if (first >= static_cast<int>(most)) break;
      if (first > 0) flight = start(part, row, most, first);
#pragma unroll
      for (int i = 0; i < kFlight; ++i) {
        if (!is_left(first + i, most)) break;
        const float w = from_owner(weight, first + i);
        float x[8];
        unpack(flight.rows[i], x);
#pragma unroll
        for (int d = 0; d < 8; ++d) sum[d] = fmaf(w, x[d], sum[d]);
      }
    }
  }

  // Sums one value per entry over the chunk; all lanes of the group get the sum.
  __device__ float sum_entries(float x) const {
#pragma unroll
    for (int step = kLanes / 2; step >= kCopies; step /= 2) x += __shfl_xor_sync(kWarp, x, step);
    return x;
  }

 private:
  static __device__ bool is_left(int entry, uint32_t most) {
    return !kLeavesOut || entry < static_cast<int>(most);
  }
  __device__ uint32_t row_bytes() const {
    return head_dim * static_cast<uint32_t>(sizeof(T));
  }

  template <class Value>
  __device__ Value from_owner(Value x, int entry) const {
    return __shfl_sync(kWarp, x, entry * kCopies, kLanes);
  }

  // Sums each of the 8 values over the group; a lane gets the sum of its own entry. Each step halves the
  // number of values, which takes 7 exchanges instead of 24.
  __device__ float sum_for_owner(float (&sums)[kChunk]) const {
#pragma unroll
    for (int keep = kChunk / 2; keep >= 1; keep /= 2) {
      const int step = keep * kCopies;
      const bool upper = (lane & step) != 0;
#pragma unroll
      for (int i = 0; i < keep; ++i) {
        const float given = upper ? sums[i] : sums[i + keep];
        sums[i] = (upper ? sums[i + keep] : sums[i]) + __shfl_xor_sync(kWarp, given, step);
      }
    }
#pragma unroll
    for (int step = kCopies / 2; step >= 1; step /= 2) sums[0] += __shfl_xor_sync(kWarp, sums[0], step);
    return sums[0];
  }
};

// Calls use.operator()<element type, lanes of a group>().
template <class Use>
void for_element_and_lanes(Dtype dtype, uint32_t head_dim, const Use& use) {
  const auto with_lanes = [&]<class T>() {
    if (head_dim <= 64) return use.template operator()<T, 8>();
    if (head_dim <= 128) return use.template operator()<T, 16>();
    return use.template operator()<T, 32>();
  };
  switch (dtype) {
    case Dtype::bf16:
      return with_lanes.template operator()<__nv_bfloat16>();
    case Dtype::f16:
      return with_lanes.template operator()<__half>();
    default:
      return with_lanes.template operator()<float>();
  }
}

}  // namespace splash::gpu::entmax::backward
