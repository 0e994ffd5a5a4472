#pragma once
// Attention to all keys in a step, from the scores that steps.cuh has left in the workspace: values are read
// once, so that a layer that attends to all keys and looks for some reads its keys and values once each.
//
// A warp multiplies the weights of 16 keys by their values with mma.sync. A thread reads 8 neighbouring
// numbers of four keys that follow one another; number j of all threads is an operand of product j, for keys
// of a sum and columns of an output may be in any order. Blocks leave sums of kValueKeys keys each, which a
// second kernel adds up in their order.

#include "gpu/kascade/steps.cuh"

namespace splash::gpu::kascade {

constexpr int kValueKeys = 2048, kValueCopies = 3;  // of a block, at least; of a warp, under way

// Four keys follow one another, as a bulk copy leaves them; the next four begin 32 bytes further than they
// would, so that the threads of a warp, which read four keys each, read all banks.
template <int kDims>
struct ValueShared {
  union {
    alignas(128) unsigned char values[kStepWarps][kValueCopies][kKeyGroup / 4][4 * 2 * kDims + 32];
    float sums[kMostStepRows][kDims];  // in the end
  };
  uint64_t arrived[kStepWarps][kValueCopies];
};

// Sums of the weights of a block's keys times kDims columns of their values. keys: of a block, a multiple of
// kValueKeys; to: [lists, blocks, rows, head_dim].
template <class Element, int kDims, int kRowTiles>
__global__ void __launch_bounds__(kStepThreads, kRowTiles <= 2 ? 2 : 1)
    weigh_values(const __grid_constant__ AnchorSlab slab, const StepRows steps, int keys, float* to) {
  constexpr int kPairs = (kRowTiles + 1) / 2;  // of tiles of 8 rows: an operand each
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  auto& shared = *reinterpret_cast<ValueShared<kDims>*>(shared_memory);
  const Problem& p = slab.problem;
  const int list = blockIdx.y, warp = __shfl_sync(arch::kAllLanes, static_cast<int>(threadIdx.x) / 32, 0),
            lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  // Where rows do not follow one another, each thread copies and counts: in pages, where other heads' keys
  // may lie between two, and of a part of head_dim.
  const bool apart = p.pages.table != nullptr || p.head_dim > kDims;
  if (lane == 0) {
    for (int copy = 0; copy < kValueCopies; ++copy)
      arch::mbarrier_init(&shared.arrived[warp][copy], apart ? 32 : 1);
    arch::mbarrier_init_fence();
  }
  __syncwarp();
  entmax::wait_for_kernels_before();
  const TileAddress at = slab.address_of(list);
  const int first_column = static_cast<int>(blockIdx.z) * kDims,
            row_bytes = 2 * min(kDims, p.head_dim - first_column), first_key = p.first_key(at),
            begin = static_cast<int>(blockIdx.x) * keys, end = min(slab.visible(at), begin + keys);
  if (begin >= end) return;
  const auto first_of = [&](int copy) { return begin + kKeyGroup * (kStepWarps * copy + warp); };
  const auto values_row = [&](int copy) { return row_of_group(p, at, first_of(copy), end); };
  const int64_t key_bytes = 2 * p.head_dim, step = rows_apart(p) * key_bytes;
  const auto load = [&](int copy, int64_t row) {
    const int rows = min(kKeyGroup, end - first_of(copy));
    if (rows <= 0) return;
    auto& to = shared.values[warp][copy % kValueCopies];
    uint64_t* const arrived = &shared.arrived[warp][copy % kValueCopies];
    const char* const from = static_cast<const char*>(p.v) + row * key_bytes + 2 * first_column;
    if (apart) {
      copy_group<kDims>(from, step, row_bytes, rows,
                        [&](int of_row) { return to[of_row / 4] + of_row % 4 * row_bytes; });
      arch::cp_async_arrive(arrived);
      return;
    }
    if (lane == 0) arch::mbarrier_arrive_expect(arrived, rows * row_bytes);
    __syncwarp();
    if (4 * lane < rows)
      arch::bulk_load(to[lane], from + 4 * lane * key_bytes, min(4, rows - 4 * lane) * row_bytes, arrived);
  };
  for (int copy = 0; copy < kValueCopies; ++copy) load(copy, values_row(copy));
  float sums[kPairs][kDims / 8][4] = {};  // of rows g and g + 8 of a pair
  float4 scores[2 * kPairs];              // of the next keys: they take as long as values
  float normalizers[2 * kPairs];
  const auto row_of = [&](int i) { return i / 2 * 16 + g + i % 2 * 8; };
#pragma unroll
  for (int i = 0; i < 2 * kPairs; ++i)
    normalizers[i] =
        row_of(i) < steps.rows ? steps.normalizers[int64_t{list} * steps.rows + row_of(i)] : INFINITY;
  const auto read_scores = [&](int first) {
    const int key = first + 4 * t;
#pragma unroll
    for (int i = 0; i < 2 * kPairs; ++i) {
      scores[i] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
      if (row_of(i) >= steps.rows || key >= end) continue;
      scores[i] = *reinterpret_cast<const float4*>(
          steps.scores + (int64_t{list} * steps.rows + row_of(i)) * slab.pitch + key);
      if (key + 1 >= end) scores[i].y = -INFINITY;
      if (key + 2 >= end) scores[i].z = -INFINITY;
      if (key + 3 >= end) scores[i].w = -INFINITY;
    }
  };
  read_scores(first_of(0));
  for (int copy = 0; first_of(copy) < end; ++copy) {
    const int first = first_of(copy), place = copy % kValueCopies;
    const int64_t next_row = values_row(copy + kValueCopies);  // long before it is needed
    uint32_t weights[kPairs][4];
#pragma unroll
    for (int i = 0; i < 2 * kPairs; ++i) {
      const auto weight = [&](float score) { return arch::exp2_approx(score - normalizers[i]); };
      weights[i / 2][i % 2] = arch::pack_pair<Element>(weight(scores[i].x), weight(scores[i].y));
      weights[i / 2][i % 2 + 2] = arch::pack_pair<Element>(weight(scores[i].z), weight(scores[i].w));
    }
    read_scores(first_of(copy + 1));
    arch::mbarrier_wait(&shared.arrived[warp][place], copy / kValueCopies % 2);
    // Nothing of what no row sees: it may hold anything.
    const auto values_of = [&](int i, int column) {
      const int key = first + 4 * t + i;
      return key < end && key >= first_key
                 ? *reinterpret_cast<const uint4*>(&shared.values[warp][place][t][i * row_bytes + 2 * column])
                 : uint4{};
    };
#pragma unroll
    for (int half = 0; half < kDims / 64; ++half) {
      uint32_t of_keys[2][8];  // two keys' number j
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint4 a = values_of(2 * i, 64 * half + 8 * g), b = values_of(2 * i + 1, 64 * half + 8 * g);
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
    load(copy + kValueCopies, next_row);
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

// A block for each list and row. from: of weigh_values, so many blocks a list, of so many keys.
template <class Element>
__global__ void __launch_bounds__(128)
    add_values(const __grid_constant__ AnchorSlab slab, const StepRows steps, const float* from, int blocks,
               int keys) {
  entmax::wait_for_kernels_before();
  const Problem& p = slab.problem;
  const int list = blockIdx.y, row = blockIdx.x;
  const TileAddress at = slab.address_of(list);
  const int there = (slab.visible(at) + keys - 1) / keys;
  const int64_t query = (at.kv_head * p.group + row / p.q_len) * p.q_len + row % p.q_len;
  for (int column = static_cast<int>(threadIdx.x); column < p.head_dim; column += 128) {
    float sum = 0;
    for (int block = 0; block < there; ++block)
      sum += from[((int64_t{list} * blocks + block) * steps.rows + row) * p.head_dim + column];
    static_cast<Element*>(p.out)[query * p.head_dim + column] = static_cast<Element>(sum);
  }
}

}  // namespace splash::gpu::kascade
