#pragma once
// Outputs of the dense pass (dense.cuh). Of rows that keep many keys, warp w sums the values of 128 keys of
// each chunk: from key 128 j + 16 w of the chunk on, 16 keys of each j. The sums of a warp are added in the
// order of chunks, those of a row in the order of warps. So a sum's bits depend on the row's keys alone. Of
// rows that keep few, scores become probabilities where they lie, masks tell which keys are kept, and their
// values are added as solve.cuh adds them.

#include "gpu/decode/dense_search.cuh"

namespace splash::gpu::decode {

constexpr int kMaskWords = kChunkKeys / 32;            // of a chunk
constexpr int kWarpGroups = kChunkKeys / kWarps / 16;  // of 16 keys of a chunk, of a warp
static_assert(kWarpGroups % 2 == 0);                   // two have a key for each lane

// The first key of a warp's group, in its chunk.
__device__ __forceinline__ int group_key(int group, int warp) {
  return 16 * (group * kWarps + warp);
}

// The chunks that a unit's rows see, in order; a block of the team has [begin, end) of them.
struct Chunks {
  int first, sinks, count;  // first chunk of the window; 1 if chunk 0 with the sinks comes before it
  int begin, end;

  __device__ Chunks(const Step& p, int length, const Team& team) {
    first = p.window > 0 ? max(length - (p.q_len - 1) - p.window, 0) / kChunkKeys : 0;
    sinks = first > 0 && p.sinks > 0 ? 1 : 0;
    count = sinks + (length + kChunkKeys - 1) / kChunkKeys - first;
    const int each = (count + team.size - 1) / team.size;
    begin = min(team.rank * each, count);
    end = min(begin + each, count);
  }

  __device__ int key(int chunk) const { return (chunk < sinks ? 0 : first + chunk - sinks) * kChunkKeys; }
  __device__ int own_keys() const { return (end - begin) * kChunkKeys; }
};

// What a team has room for in the workspace.
struct DenseRoom {
  int64_t pitch;    // scores of a row
  float* scores;    // [listed_rows, pitch]; later probabilities
  uint32_t* masks;  // [listed_rows, pitch / 32]
  float* sums;      // [chunks, kWarps, listed_rows, head_dim]
  RowSums* asked;   // [2, team, kRows]
  float* largest;   // [team, kRows]
  RowList lists;    // [listed_rows, most_listed()]

  __device__ DenseRoom(const Step& p, int team) {
    const Dense& dense = p.dense;
    const int64_t rows = int64_t{team} * p.listed_rows;
    pitch = int64_t{dense.chunks} * kChunkKeys;
    scores = dense.scores + rows * pitch;
    masks = dense.masks + rows * (pitch / 32);
    sums = dense.sums + rows * dense.chunks * kWarps * p.cache.head_dim;
    asked = dense.asked + int64_t{team} * 2 * dense.team * kRows;
    largest = dense.largest + int64_t{team} * dense.team * kRows;
    const int64_t listed = rows * most_listed(p.cache.head_dim);
    lists = {dense.keys + listed, dense.weights + listed, 0};
  }

  __device__ RowList list_of(const Step& p, int row, int count) const {
    const int64_t at = int64_t{row} * most_listed(p.cache.head_dim);
    return {lists.keys + at, lists.values + at, count};
  }
};

// Probabilities of a row's scores.
struct RowWeights {
  Entmax entmax;
  float largest, shift, inverse;

  __device__ RowWeights(const Entmax& of_row, float largest_score, const Search& search)
      : entmax(of_row), largest(largest_score), shift(search.found()), inverse(search.inverse) {}

  __device__ float u(float score) const { return __fmul_rn(entmax.gain, score - largest) + shift; }
  __device__ float weight(float u) const { return entmax.weight(u) * inverse; }
};

// Makes probabilities of the block's scores of a row where they lie, and masks of the keys that it keeps.
__device__ __forceinline__ void make_weights(const RowWeights& row, float* scores, uint32_t* masks,
                                             int count) {
  constexpr int kAhead = 4;
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll 1
  for (int first = thread; first < count; first += kAhead * kThreads) {
    float u[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) u[i] = scores[first + i * kThreads];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      u[i] = row.u(u[i]);
      scores[first + i * kThreads] = row.weight(u[i]);
      const uint32_t mask = __ballot_sync(kAllLanes, u[i] > 0);
      if (thread % 32 == 0) masks[(first + i * kThreads) / 32] = mask;
    }
  }
}

// Of a warp: the probabilities of 32 keys, of each row.
using HeldWeights = float[kRows][32];

// Sums the block's values of the rows in `summed`, each chunk's. kMost: rows, at least.
template <class T, int kDim, int kMost>
__device__ __forceinline__ void sum_values(const Step& p, const Unit& unit, const Chunks& chunks,
                                           const DenseRoom& room, uint32_t summed,
                                           const Entmax (&entmax)[kRows], const float (&largest)[kRows],
                                           const Search (&search)[kRows], HeldWeights& held) {
  constexpr int kLanes = kDim / 8, kTogether = 32 / kLanes;  // lanes per value, values per load
  constexpr int kAhead = kMost <= 4 ? 8 : 4;                 // loads on their way
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int mine = lane / kLanes, channel = lane % kLanes * 8;
#pragma unroll 1
  for (int chunk = chunks.begin; chunk < chunks.end; ++chunk) {
    float sums[kMost][8] = {};
#pragma unroll 1
    for (int pair = 0; pair < kWarpGroups / 2; ++pair) {  // of groups: 32 keys, one a lane
      const float* scores =
          room.scores + chunk * kChunkKeys + group_key(2 * pair + lane / 16, warp) + lane % 16;
      float of_row[kMost];
#pragma unroll
      for (int row = 0; row < kMost; ++row)
        of_row[row] = (summed >> row & 1) != 0 ? scores[row * room.pitch] : 0;
      bool kept_by_any = false;
#pragma unroll
      for (int row = 0; row < kMost; ++row) {
        if ((summed >> row & 1) == 0) continue;
        const RowWeights weights(entmax[row], largest[row], search[row]);
        const float u = weights.u(of_row[row]);
        kept_by_any |= u > 0;
        of_row[row] = weights.weight(u);
      }
      const uint32_t any = __ballot_sync(kAllLanes, kept_by_any);
      __syncwarp();  // others are done with `held`
#pragma unroll
      for (int row = 0; row < kMost; ++row) held[row][lane] = of_row[row];
      __syncwarp();
      if (any == 0) continue;
#pragma unroll 1
      for (int first = 0; first < 32 / kAhead; first += kTogether) {  // kAhead keys for each lane
        const int at = (first + mine) * kAhead;                       // of the 32
        const uint32_t kept = any >> at;
        const int key = chunks.key(chunk) + group_key(2 * pair + at / 16, warp) + at % 16;
        const T* from = (kept & ((1u << kAhead) - 1)) == 0
                            ? nullptr
                            : unit.in_page<T>(p, p.cache.values, unit.page(p, key), key) + channel;
        Packed8<T> values[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i)
          values[i] =
              (kept >> i & 1) != 0 ? load_value(from + i * p.cache.values.token_stride) : Packed8<T>{};
        __syncwarp();  // so that the compiler has all loads on their way first
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          float value[8];
          unpack_value<T>(values[i], value);
#pragma unroll
          for (int row = 0; row < kMost; ++row)
            entmax::add_scaled_unless_0(sums[row], held[row][at + i], value);
        }
      }
    }
    float* const to = room.sums + (int64_t{chunk} * kWarps + warp) * p.listed_rows * kDim + channel;
#pragma unroll
    for (int row = 0; row < kMost; ++row) {
      if ((summed >> row & 1) == 0) continue;
#pragma unroll
      for (float& sum : sums[row]) {
#pragma unroll
        for (int lanes = kLanes; lanes < 32; lanes *= 2) sum += __shfl_xor_sync(kAllLanes, sum, lanes);
      }
      if (mine != 0) continue;
      auto* const of_row = reinterpret_cast<float4*>(to + row * kDim);
      of_row[0] = {sums[row][0], sums[row][1], sums[row][2], sums[row][3]};
      of_row[1] = {sums[row][4], sums[row][5], sums[row][6], sums[row][7]};
    }
  }
}

// The warp's share of a row's values, of all that the team's blocks have summed.
template <class T, int kDim>
__device__ __forceinline__ void add_chunks(const Step& p, int row, int chunks, const DenseRoom& room,
                                           PartSums<kDim>& parts) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  constexpr int kEach = kDim / 32;
  const float* from = room.sums + (int64_t{warp} * p.listed_rows + row) * kDim + lane * kEach;
  float sums[kEach] = {};
#pragma unroll 8
  for (int chunk = 0; chunk < chunks; ++chunk) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) sums[i] += from[int64_t{chunk} * kWarps * p.listed_rows * kDim + i];
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) parts[warp][lane * kEach + i] = sums[i];
}

// Lists where the scores of the keys lie that a row keeps, at most most_listed(), in key order. A warp calls
// it.
__device__ __forceinline__ void list_kept(const Step& p, int row, const Chunks& chunks, const DenseRoom& room,
                                          int lane) {
  const RowList list = room.list_of(p, row, 0);
  const uint32_t* masks = room.masks + row * (room.pitch / 32);
  int count = 0;
#pragma unroll 1
  for (int first = 0; first < chunks.count * kMaskWords; first += 32) {
    uint32_t mask = masks[first + lane];
    const int end = sum_up_to(__popc(mask), lane);
    int place = count + end - __popc(mask);
    for (; mask != 0; mask &= mask - 1)
      list.keys[place++] = 32 * (first + lane) + __ffs(static_cast<int>(mask)) - 1;
    count += __shfl_sync(kAllLanes, end, 31);
  }
}

// Puts keys in the place of where their scores lie, and probabilities beside them. A block calls it.
__device__ __forceinline__ void gather_kept(const RowList& list, int row, const Chunks& chunks,
                                            const DenseRoom& room) {
  for (int entry = static_cast<int>(threadIdx.x); entry < list.count; entry += kThreads) {
    const int at = list.keys[entry];
    list.values[entry] = room.scores[row * room.pitch + at];
    list.keys[entry] = chunks.key(at / kChunkKeys) + at % kChunkKeys;
  }
}

}  // namespace splash::gpu::decode
