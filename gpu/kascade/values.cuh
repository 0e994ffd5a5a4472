#pragma once
// Attention to all keys in a step, from the scores that steps.cuh has left in the workspace: values are read
// once, so that a layer that attends to all keys and looks for some reads its keys and values once each.
//
// A warp multiplies the weights of 16 keys by their values with mma.sync. A thread reads 8 neighbouring
// numbers of four keys; number j of all threads is an operand of product j, for columns of an output may be
// in any order. Blocks leave sums of kValueKeys keys each, which a second kernel adds up in their order.

#include "gpu/kascade/steps.cuh"

namespace splash::gpu::kascade {

constexpr int kValueKeys = 2048, kValueCopies = 3;  // of a block; of a warp, under way

template <int kDims>
struct ValueShared {
  union {
    // Rows begin 16 bytes further than the last one ends, so that the threads of a warp read all banks.
    alignas(128) unsigned char values[kStepWarps][kValueCopies][kKeyGroup][2 * kDims + 16];
    float sums[kMostStepRows][kDims];  // in the end
  };
  float normalizers[kMostStepRows];
};

inline int64_t value_blocks(int64_t kv_len) {
  return ceil_div(kv_len, kValueKeys);
}

// Sums of the weights of a block's keys times kDims columns of their values. to: [lists, blocks, rows,
// head_dim].
template <class Element, int kDims, int kRowTiles>
__global__ void __launch_bounds__(kStepThreads)
    weigh_values(const __grid_constant__ AnchorSlab slab, const StepRows steps, float* to) {
  constexpr int kPairs = (kRowTiles + 1) / 2;  // of tiles of 8 rows: an operand each
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  auto& shared = *reinterpret_cast<ValueShared<kDims>*>(shared_memory);
  const Problem& p = slab.problem;
  const int list = blockIdx.y, warp = __shfl_sync(arch::kAllLanes, static_cast<int>(threadIdx.x) / 32, 0),
            lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  entmax::wait_for_kernels_before();
  const TileAddress at = p.address((slab.first + list) * p.row_blocks);
  const int first_column = static_cast<int>(blockIdx.z) * kDims,
            row_bytes = 2 * min(kDims, p.head_dim - first_column), first_key = p.first_key(at),
            begin = static_cast<int>(blockIdx.x) * kValueKeys,
            end = min(slab.visible(at), begin + kValueKeys);
  if (begin >= end) return;
  const auto first_of = [&](int copy) { return begin + kKeyGroup * (kStepWarps * copy + warp); };
  const auto* const from = static_cast<const char*>(p.v) + (p.first_row(at) * p.head_dim + first_column) * 2;
  const auto load = [&](int copy) {
    copy_rows(p, at, from, row_bytes, first_of(copy), end, &shared.values[warp][copy % kValueCopies][0][0],
              sizeof(shared.values[0][0][0]));
    arch::cp_async_commit();
  };
  for (int copy = 0; copy < kValueCopies; ++copy) load(copy);
  find_step_normalizers<kStepThreads>(steps, list, shared.normalizers);
  float sums[kPairs][kDims / 8][4] = {};  // of rows g and g + 8 of a pair
  float2 scores[4 * kPairs];              // of the next keys: they take as long as values
  const auto row_of = [&](int i) { return i / 4 * 16 + g + i % 2 * 8; };
  const auto read_scores = [&](int first) {
#pragma unroll
    for (int i = 0; i < 4 * kPairs; ++i) {
      const int key = first + 2 * t + i % 4 / 2 * 8;
      scores[i] = {-INFINITY, -INFINITY};
      if (row_of(i) >= steps.rows || key >= end) continue;
      scores[i] = *reinterpret_cast<const float2*>(
          steps.scores + (int64_t{list} * steps.rows + row_of(i)) * slab.pitch + key);
      if (key + 1 >= end) scores[i].y = -INFINITY;
    }
  };
  read_scores(first_of(0));
  for (int copy = 0; first_of(copy) < end; ++copy) {
    const int first = first_of(copy);
    uint32_t weights[kPairs][4];
#pragma unroll
    for (int i = 0; i < 4 * kPairs; ++i) {
      const float normalizer = row_of(i) < steps.rows ? shared.normalizers[row_of(i)] : INFINITY;
      weights[i / 4][i % 4] = arch::pack_pair<Element>(arch::exp2_approx(scores[i].x - normalizer),
                                                       arch::exp2_approx(scores[i].y - normalizer));
    }
    read_scores(first_of(copy + 1));
    arch::cp_async_wait<kValueCopies - 1>();
    __syncwarp();
    const auto values_of = [&](int key, int column) {  // nothing of what no row sees: it may hold anything
      const bool seen = first + key < end && first + key >= first_key;
      return seen
                 ? *reinterpret_cast<const uint4*>(&shared.values[warp][copy % kValueCopies][key][2 * column])
                 : uint4{};
    };
#pragma unroll
    for (int half = 0; half < kDims / 64; ++half) {
      uint32_t of_keys[2][8];  // two keys' number j
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint4 a = values_of(2 * t + 8 * i, 64 * half + 8 * g),
                    b = values_of(2 * t + 1 + 8 * i, 64 * half + 8 * g);
        const uint32_t low[4] = {a.x, a.y, a.z, a.w}, high[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int j = 0; j < 8; ++j)
          of_keys[i][j] = __byte_perm(low[j / 2], high[j / 2], j % 2 == 0 ? 0x5410 : 0x7632);
      }
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
#pragma unroll
        for (int j = 0; j < 8; ++j)
          arch::mma_m16n8k16<Element>(sums[pair][8 * half + j], weights[pair], of_keys[0][j], of_keys[1][j]);
      }
    }
    __syncwarp();  // all have read what the next copy overwrites
    load(copy + kValueCopies);
  }
  for (int turn = 0; turn < kStepWarps; ++turn) {  // in order
    __syncthreads();                               // in the first turn, all values have been read
    if (warp == turn) {
#pragma unroll
      for (int i = 0; i < 4 * kPairs * (kDims / 8); ++i) {
        const int e = i % 4, product = i / 4 % (kDims / 8), pair = i / 4 / (kDims / 8);
        const int row = pair * 16 + g + e / 2 * 8,
                  column = product / 8 * 64 + 8 * (2 * t + e % 2) + product % 8;
        if (row >= steps.rows) continue;
        float& sum = shared.sums[row][column];
        sum = turn == 0 ? sums[pair][product][e] : sum + sums[pair][product][e];
      }
    }
  }
  __syncthreads();
  float* const of_block =
      to + (int64_t{list} * gridDim.x + blockIdx.x) * steps.rows * p.head_dim + first_column;
  for (int i = threadIdx.x; i < steps.rows * kDims; i += kStepThreads) {
    const int row = i / kDims, column = i % kDims;
    if (2 * column < row_bytes) of_block[row * p.head_dim + column] = shared.sums[row][column];
  }
}

// A block for each list and row. from: of weigh_values, so many blocks a list.
template <class Element>
__global__ void __launch_bounds__(128)
    add_values(const __grid_constant__ AnchorSlab slab, const StepRows steps, const float* from, int blocks) {
  entmax::wait_for_kernels_before();
  const Problem& p = slab.problem;
  const int list = blockIdx.y, row = blockIdx.x;
  const TileAddress at = p.address((slab.first + list) * p.row_blocks);
  const int there = (slab.visible(at) + kValueKeys - 1) / kValueKeys;
  const int64_t query = (at.kv_head * p.group + row / p.q_len) * p.q_len + row % p.q_len;
  for (int column = static_cast<int>(threadIdx.x); column < p.head_dim; column += 128) {
    float sum = 0;
    for (int block = 0; block < there; ++block)
      sum += from[((int64_t{list} * blocks + block) * steps.rows + row) * p.head_dim + column];
    static_cast<Element*>(p.out)[query * p.head_dim + column] = static_cast<Element>(sum);
  }
}

}  // namespace splash::gpu::kascade
