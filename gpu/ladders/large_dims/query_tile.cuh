#pragma once
// A block's tile of 4, 8 or 16 queries by 64 keys in plain fp32: what rungs 1, 2, 8 and 9 share. A block has
// 256 threads. 256 / queries of them share one query's scores and take its keys in turn.

#include "gpu/ladders/large_dims/common.cuh"

namespace splash::gpu::large_dims {

constexpr int kKeys = 64, kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kChunk = 32;  // of head_dim, in shared memory at a time

template <int kQueries>
constexpr int kThreadsOfQuery = kThreads / kQueries;
template <int kQueries>
constexpr int kKeysOfThread = kKeys / kThreadsOfQuery<kQueries>;

// `weights` holds the scores before online_softmax() and the weights after it. The rest is each row's state.
template <int kQueries>
struct ScoreTile {
  float weights[kQueries][kKeys];  // first, where it is 16-byte aligned
  float max[kQueries], sum[kQueries];
  float correction[kQueries];  // what the output accumulated so far is multiplied with
};

template <int kQueries>
__device__ void reset(ScoreTile<kQueries>& tile) {
  if (threadIdx.x < kQueries) {
    tile.max[threadIdx.x] = -INFINITY;
    tile.sum[threadIdx.x] = 0;
  }
}

// Turns a tile of scores (hidden ones are -inf) into weights. All threads call it; it begins and ends with a
// barrier.
template <int kQueries>
__device__ void online_softmax(ScoreTile<kQueries>& tile) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  __syncthreads();  // the scores are written
  for (int row = warp; row < kQueries; row += kWarps) {
    const float a = tile.weights[row][lane], b = tile.weights[row][lane + 32];
    const float old_max = tile.max[row];
    const float max = fmaxf(old_max, warp_max(fmaxf(a, b)));
    const float weight_a = weight(a, max), weight_b = weight(b, max);
    const float sum = warp_sum(weight_a + weight_b);
    __syncwarp();  // all lanes have read the maximum before one writes it
    tile.weights[row][lane] = weight_a;
    tile.weights[row][lane + 32] = weight_b;
    if (lane == 0) {
      tile.correction[row] = weight(old_max, max);
      tile.sum[row] = tile.sum[row] * tile.correction[row] + sum;
      tile.max[row] = max;
    }
  }
  __syncthreads();
}

// Operands of the scores, a chunk of head_dim at a time. The odd pitch spreads rows over the banks.
template <int kQueries>
struct OperandTiles {
  float q[kQueries][kChunk + 1];
  float k[kKeys][kChunk + 1];
};

// scores[j] += <q, k> of query thread / width and key thread % width + width j, width = kThreadsOfQuery, over
// dims [begin, end). q and k point to the tile's first rows; rows from q_rows and k_rows on count as zero.
template <int kQueries, class T>
__device__ void add_scores(OperandTiles<kQueries>& operands, const T* q, const T* k, int q_rows, int k_rows,
                           int head_dim, int begin, int end, float (&scores)[kKeysOfThread<kQueries>]) {
  constexpr int kWidth = kThreadsOfQuery<kQueries>, kCount = kKeysOfThread<kQueries>;
  const int query = threadIdx.x / kWidth, key = threadIdx.x % kWidth;
  const int load_row = threadIdx.x / kChunk, load_dim = threadIdx.x % kChunk;
  for (int chunk = begin; chunk < end; chunk += kChunk) {
    const int dim = chunk + load_dim;
    __syncthreads();  // the previous chunk has been used
    for (int row = load_row; row < kQueries; row += kThreads / kChunk)
      operands.q[row][load_dim] =
          row < q_rows && dim < end ? to_float(q[int64_t{row} * head_dim + dim]) : 0.0f;
    for (int row = load_row; row < kKeys; row += kThreads / kChunk)
      operands.k[row][load_dim] =
          row < k_rows && dim < end ? to_float(k[int64_t{row} * head_dim + dim]) : 0.0f;
    __syncthreads();
    float sums[kCount] = {};  // per chunk, as one sum over 8192 products would lose two digits
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) sums[j] += operands.q[query][i] * operands.k[key + kWidth * j][i];
    }
#pragma unroll
    for (int j = 0; j < kCount; ++j) scores[j] += sums[j];
  }
}

// sums[row] += weights[row][0..k_rows) * the column of V that v points to. Each value is read once and used
// for all queries.
template <int kQueries, class T>
__device__ void add_values(const ScoreTile<kQueries>& tile, const T* v, int k_rows, int head_dim,
                           float (&sums)[kQueries]) {
  for (int key = 0; key < k_rows; key += 4) {
    float value[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) value[j] = key + j < k_rows ? to_float(v[int64_t{key + j} * head_dim]) : 0.0f;
#pragma unroll
    for (int row = 0; row < kQueries; ++row) {
      const float4 weights = *reinterpret_cast<const float4*>(&tile.weights[row][key]);
      sums[row] += weights.x * value[0] + weights.y * value[1] + weights.z * value[2] + weights.w * value[3];
    }
  }
}

}  // namespace splash::gpu::large_dims
