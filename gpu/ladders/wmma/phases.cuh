#pragma once
// The document's kernel, phase by phase: WMMA products whose results pass through shared memory. Rungs 2 to 8
// and 12 to 16 compose these phases. They differ in where the barriers are, how the tiles lie in memory, and
// which warp multiplies what.

#include <mma.h>

#include "gpu/ladders/wmma/rows.cuh"

namespace splash::gpu::wmma_ladder {

inline constexpr int kBlock = 16;  // WMMA multiplies 16 x 16 x 16
inline constexpr int kPad = 8;     // 16-bit elements that pad each row, from rung 3 on

// Shared memory of a block: kStages tiles of K and V, rows padded by kPadding elements of 16 bits.
template <class Element, int kDim, int kRowsOfQ, int kWarpsOfBlock, int kPadding = 0, int kStages = 1,
          class Score = float>
struct Tiles {
  using T = Element;
  static constexpr int kHalves = sizeof(Score) / sizeof(T);  // 16-bit elements per score
  static constexpr int kTileM = kRowsOfQ, kWarps = kWarpsOfBlock, kThreads = kWarps * kWarp, kHeadDim = kDim;
  static constexpr int kStride = kDim + kPadding;                   // of q, k, v
  static constexpr int kScoreStride = kTileN + kPadding / kHalves;  // of scores
  static constexpr int kPackedStride = kTileN + kPadding;           // of probabilities after a conversion
  static constexpr int kInPlaceStride = kHalves * kScoreStride;  // of probabilities in place of their scores
  static constexpr int kProductStride = kDim + kPadding / 2;     // of product, in floats
  using RowState = Rows<kTileM, kWarps, kDim>;

  T q[kTileM * kStride], k[kStages][kTileN * kStride], v[kStages][kTileN * kStride];
  union {  // probabilities take the place of their scores
    Score scores[kTileM * kScoreStride];
    T probabilities[kTileM * kInPlaceStride];
  };
  float product[kTileM * kProductStride];  // of one tile's probabilities with V
};

template <class Tiles>
__device__ Tiles& shared_tiles() {
  extern __shared__ __align__(128) unsigned char memory[];
  return *reinterpret_cast<Tiles*>(memory);
}

template <class Tiles>
__device__ void load_queries(Tiles& tiles, const Problem& p, const BlockTask& task) {
  using T = typename Tiles::T;
  load_rows<Tiles::kTileM, Tiles::kHeadDim, Tiles::kStride, Tiles::kThreads>(
      tiles.q, static_cast<const T*>(p.q) + task.q_offset, task.first_query, p.q_len, p.head_dim);
}

template <class Tiles>
__device__ void load_keys_and_values(Tiles& tiles, const Problem& p, const BlockTask& task, int first_key) {
  using T = typename Tiles::T;
  load_rows<kTileN, Tiles::kHeadDim, Tiles::kStride, Tiles::kThreads>(
      tiles.k[0], static_cast<const T*>(p.k) + task.kv_offset, first_key, p.kv_len, p.head_dim);
  load_rows<kTileN, Tiles::kHeadDim, Tiles::kStride, Tiles::kThreads>(
      tiles.v[0], static_cast<const T*>(p.v) + task.kv_offset, first_key, p.kv_len, p.head_dim);
}

// multiply(block) for this warp's blocks of a product; warps take turns.
template <int kCount, int kWarps, class Multiply>
__device__ void for_each_block(const Multiply& multiply) {
#pragma unroll
  for (int turn = 0; turn < (kCount + kWarps - 1) / kWarps; ++turn) {
    const int block = turn * kWarps + static_cast<int>(threadIdx.x) / kWarp;
    if (kCount % kWarps == 0 || block < kCount) multiply(block);
  }
}

using Sum = nvcuda::wmma::fragment<nvcuda::wmma::accumulator, kBlock, kBlock, kBlock, float>;

// Q K^T: calls store(sum, row, key) for each of this warp's blocks of 16 x 16. A warp takes kWide
// neighbouring blocks at a time, which share their rows of Q.
template <int kWide, class Tiles, class Store>
__device__ void for_each_score_block(const Tiles& tiles, int stage, const Store& store) {
  using namespace nvcuda::wmma;
  using T = typename Tiles::T;
  constexpr int kAcross = kTileN / kBlock / kWide;
  for_each_block<Tiles::kTileM / kBlock * kAcross, Tiles::kWarps>([&](int block) {
    const int row = block / kAcross * kBlock, key = block % kAcross * kWide * kBlock;
    Sum sum[kWide];
#pragma unroll
    for (int n = 0; n < kWide; ++n) fill_fragment(sum[n], 0);
#pragma unroll
    for (int d = 0; d < Tiles::kHeadDim; d += kBlock) {
      fragment<matrix_a, kBlock, kBlock, kBlock, T, row_major> a;
      load_matrix_sync(a, tiles.q + row * Tiles::kStride + d, Tiles::kStride);
#pragma unroll
      for (int n = 0; n < kWide; ++n) {
        fragment<matrix_b, kBlock, kBlock, kBlock, T, col_major> b;
        load_matrix_sync(b, tiles.k[stage] + (key + n * kBlock) * Tiles::kStride + d, Tiles::kStride);
        mma_sync(sum[n], a, b, sum[n]);
      }
    }
#pragma unroll
    for (int n = 0; n < kWide; ++n) store(sum[n], row, key + n * kBlock);
  });
}

// scores = Q K^T.
template <int kWide = 1, class Tiles>
__device__ void multiply_scores(Tiles& tiles, int stage = 0) {
  for_each_score_block<kWide>(tiles, stage, [&](const Sum& sum, int row, int key) {
    nvcuda::wmma::store_matrix_sync(tiles.scores + row * Tiles::kScoreStride + key, sum, Tiles::kScoreStride,
                                    nvcuda::wmma::mem_row_major);
  });
}

// product = P V; a row of probabilities starts every kStrideP elements. A warp computes kWide neighbouring
// blocks at a time, which share their rows of P.
template <int kStrideP, int kWide = 1, class Tiles>
__device__ void multiply_values(Tiles& tiles, int stage = 0) {
  using namespace nvcuda::wmma;
  using T = typename Tiles::T;
  constexpr int kAcross = Tiles::kHeadDim / kBlock / kWide;
  for_each_block<Tiles::kTileM / kBlock * kAcross, Tiles::kWarps>([&](int block) {
    const int row = block / kAcross * kBlock, column = block % kAcross * kWide * kBlock;
    Sum sum[kWide];
#pragma unroll
    for (int n = 0; n < kWide; ++n) fill_fragment(sum[n], 0);
#pragma unroll
    for (int key = 0; key < kTileN; key += kBlock) {
      fragment<matrix_a, kBlock, kBlock, kBlock, T, row_major> a;
      load_matrix_sync(a, tiles.probabilities + row * kStrideP + key, kStrideP);
#pragma unroll
      for (int n = 0; n < kWide; ++n) {
        fragment<matrix_b, kBlock, kBlock, kBlock, T, row_major> b;
        load_matrix_sync(b, tiles.v[stage] + key * Tiles::kStride + column + n * kBlock, Tiles::kStride);
        mma_sync(sum[n], a, b, sum[n]);
      }
    }
#pragma unroll
    for (int n = 0; n < kWide; ++n) {
      store_matrix_sync(tiles.product + row * Tiles::kProductStride + column + n * kBlock, sum[n],
                        Tiles::kProductStride, mem_row_major);
    }
  });
}

// Scales the running output to the new maximum and adds this tile's product.
template <class Tiles>
__device__ void accumulate(const Tiles& tiles, typename Tiles::RowState& rows) {
#pragma unroll
  for (int i = 0; i < rows.kCount; ++i) {
    const float* const from = tiles.product + rows.row(i) * Tiles::kProductStride + rows.lane();
#pragma unroll
    for (int c = 0; c < rows.kColumns; ++c)
      rows.out[i][c] = rows.out[i][c] * rows.correction[i] + from[c * kWarp];
  }
}

// The softmax in passes over shared memory, as in the document: one warp per row, one lane per key.
template <class Tiles>
__device__ auto& score_of(Tiles& tiles, typename Tiles::RowState& rows, int i) {
  return tiles.scores[rows.row(i) * Tiles::kScoreStride + rows.lane()];
}

template <class Tiles>
__device__ void mask_scores(Tiles& tiles, typename Tiles::RowState& rows, const Problem& p,
                            const BlockTask& task, int first_key) {
#pragma unroll
  for (int i = 0; i < rows.kCount; ++i) {
    float& score = score_of(tiles, rows, i);
    score = rows.masked(p, task, i, first_key, score);
  }
}

template <class Tiles>
__device__ void raise_maxima(Tiles& tiles, typename Tiles::RowState& rows) {
#pragma unroll
  for (int i = 0; i < rows.kCount; ++i) rows.raise_max(i, score_of(tiles, rows, i));
}

template <class Tiles>
__device__ void exponentiate(Tiles& tiles, typename Tiles::RowState& rows) {
#pragma unroll
  for (int i = 0; i < rows.kCount; ++i) {
    float& score = score_of(tiles, rows, i);
    rows.exponentiate(i, score);
    score = rows.probability[i];
  }
}

template <class RowState>
__device__ void add_sums(RowState& rows) {
#pragma unroll
  for (int i = 0; i < rows.kCount; ++i) rows.add_sum(i);
}

// Packs the probabilities to 16 bits. A packed row overlaps the floats of other rows, so all are read before
// any is written.
template <class Tiles>
__device__ void convert_probabilities(Tiles& tiles, typename Tiles::RowState& rows) {
  float kept[rows.kCount];
#pragma unroll
  for (int i = 0; i < rows.kCount; ++i) kept[i] = score_of(tiles, rows, i);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < rows.kCount; ++i)
    tiles.probabilities[rows.row(i) * Tiles::kPackedStride + rows.lane()] =
        rounded<typename Tiles::T>(kept[i]);
}

// Two elements to a float: a row of probabilities overwrites its own scores, which only its warp reads.
template <class Tiles>
__device__ void write_probabilities_in_place(Tiles& tiles, const typename Tiles::RowState& rows) {
  __syncwarp();  // all scores of the warp's rows are read
#pragma unroll
  for (int i = 0; i < rows.kCount; ++i)
    tiles.probabilities[rows.row(i) * Tiles::kInPlaceStride + rows.lane()] =
        rounded<typename Tiles::T>(rows.probability[i]);
}

// The whole softmax of the rows that a warp owns, in registers. Needs only __syncwarp().
template <class Tiles>
__device__ void softmax_in_place(Tiles& tiles, typename Tiles::RowState& rows, const Problem& p,
                                 const BlockTask& task, int first_key) {
#pragma unroll
  for (int i = 0; i < rows.kCount; ++i) {
    const float score = rows.masked(p, task, i, first_key, score_of(tiles, rows, i));
    rows.raise_max(i, score);
    rows.exponentiate(i, score);
    rows.add_sum(i);
  }
  write_probabilities_in_place(tiles, rows);
}

// V2's loop over key tiles: each phase ends at a barrier, needed or not. A tile has ten barriers (one is in
// the conversion).
template <int kWide, class Tiles>
__device__ void walk_with_a_barrier_a_phase(Tiles& tiles, typename Tiles::RowState& rows, const Problem& p,
                                            const BlockTask& task) {
  for (int first_key = 0; first_key < task.end_key; first_key += kTileN) {
    load_keys_and_values(tiles, p, task, first_key);
    __syncthreads();
    multiply_scores<kWide>(tiles);
    __syncthreads();
    mask_scores(tiles, rows, p, task, first_key);
    __syncthreads();
    raise_maxima(tiles, rows);
    __syncthreads();
    exponentiate(tiles, rows);
    __syncthreads();
    add_sums(rows);
    __syncthreads();
    convert_probabilities(tiles, rows);
    __syncthreads();
    multiply_values<Tiles::kPackedStride, kWide>(tiles);
    __syncthreads();
    accumulate(tiles, rows);
    __syncthreads();
  }
}

// The loop of rungs 6, 7 and 16: a barrier only where a warp reads what other warps wrote.
template <int kWide, class Tiles>
__device__ void walk_with_four_barriers(Tiles& tiles, typename Tiles::RowState& rows, const Problem& p,
                                        const BlockTask& task) {
  for (int first_key = 0; first_key < task.end_key; first_key += kTileN) {
    load_keys_and_values(tiles, p, task, first_key);
    __syncthreads();  // K and V are there (Q too)
    multiply_scores<kWide>(tiles);
    __syncthreads();  // a warp's rows of scores come from other warps
    softmax_in_place(tiles, rows, p, task, first_key);
    __syncthreads();  // a block of probabilities has rows from all warps
    multiply_values<Tiles::kInPlaceStride, kWide>(tiles);
    __syncthreads();  // so has a block of the product; V has been read and may be overwritten
    accumulate(tiles, rows);
  }
}

template <class Tiles, class Kernel>
Entry entry_of(Kernel* kernel) {
  return {reinterpret_cast<const void*>(kernel), sizeof(Tiles)};
}

// Rungs 2, 3, 4, 6, 7, 15 and 16 differ only in the template parameters of attention_in_phases.
enum class Barriers { after_each_phase, four_a_tile };

template <class T, int kDim, int kTileM, int kWarps, int kPadding, Barriers kBarriers, int kWide>
__global__ void __launch_bounds__(kWarps* kWarp) attention_in_phases(Problem p) {
  using Shared = Tiles<T, kDim, kTileM, kWarps, kPadding>;
  auto& tiles = shared_tiles<Shared>();
  typename Shared::RowState rows;
  const BlockTask task = block_task(p, kTileM);
  load_queries(tiles, p, task);
  if constexpr (kBarriers == Barriers::after_each_phase) {
    walk_with_a_barrier_a_phase<kWide>(tiles, rows, p, task);
  } else {
    walk_with_four_barriers<kWide>(tiles, rows, p, task);
  }
  rows.template write<T>(p, task);
}

template <int kTileM, int kWarps, int kPadding, Barriers kBarriers, int kWide = 1>
Plan plan_in_phases(const AttentionSpec& spec, Dtype dtype, const char* name) {
  const Entry entry = for_instance(dtype, spec.shape.head_dim, [](auto instance) {
    using I = decltype(instance);
    using T = typename I::Element;
    return entry_of<Tiles<T, I::kHeadDim, kTileM, kWarps, kPadding>>(
        attention_in_phases<T, I::kHeadDim, kTileM, kWarps, kPadding, kBarriers, kWide>);
  });
  return tiled_plan(spec, {.q = kTileM, .k = kTileN}, name, kWarps * kWarp, entry);
}

}  // namespace splash::gpu::wmma_ladder
