#pragma once
// The anchor's sums where a key head has few rows, as in a step of decoding (sm_90's bulk copies). There the
// time is that of reading the keys, so they are read once: the scores stay in the workspace. Three kernels:
// the scores and, chunk by chunk, each row's largest score and sum; the pooled probabilities; select.cuh.
//
// A warp multiplies 16 keys, which lie behind one another and come by one bulk copy, by 8 rows with mma.sync.
// Keys are the left operand: the sum over head_dim may run in any order, so that the 16 bytes that a thread
// reads at once are the elements of two products.

#include "gpu/arch/bulk_copy.cuh"
#include "gpu/arch/mbarrier.cuh"
#include "gpu/arch/mma.cuh"
#include "gpu/kascade/scores.cuh"

namespace splash::gpu::kascade {

constexpr int kStepThreads = 256, kStepWarps = kStepThreads / 32;
constexpr int kCopies = 2, kChunk = 16 * kStepWarps * kCopies;  // of a warp; keys of a block of score_steps
constexpr int kPoolChunk = 8 * kStepThreads;                    // of pool_steps
constexpr int kMostStepRows = 32;                               // of a key head: its query heads x queries

template <int kDim>
struct StepShared {
  alignas(128) unsigned char keys[kStepWarps][kCopies][16 * kDim * 2];
  uint64_t arrived[kStepWarps][kCopies];
  float2 of_warps[kStepWarps][kMostStepRows];
};

// What a launch works on, beside the slab's lists.
struct StepRows {
  int rows = 1, chunks = 1;   // rows of a key head; chunks of its keys
  float* scores = nullptr;    // [lists, rows, pitch], times log2(e)
  float2* partial = nullptr;  // [lists, chunks, kMostStepRows]: largest score, sum of 2^(score - largest)
};

// kRowTiles: of 8 rows each.
template <class Element, int kDim, int kRowTiles>
__global__ void __launch_bounds__(kStepThreads)
    score_steps(const __grid_constant__ AnchorSlab slab, const StepRows steps) {
  constexpr int kColumns = kDim / 32;  // 16-byte pieces of a row that a thread holds
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  auto& shared = *reinterpret_cast<StepShared<kDim>*>(shared_memory);
  const Problem& p = slab.problem;
  const int list = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const TileAddress at = p.address((slab.first + list) * p.row_blocks);
  const int row_bytes = p.head_dim * 2, end = min(p.kv_len, (static_cast<int>(blockIdx.x) + 1) * kChunk);
  const auto first_of = [&](int copy) {
    return static_cast<int>(blockIdx.x) * kChunk + 16 * (kStepWarps * copy + warp);
  };
  if (lane == 0) {
    for (int copy = 0; copy < kCopies; ++copy) arch::mbarrier_init(&shared.arrived[warp][copy], 1);
    arch::mbarrier_init_fence();
    for (int copy = 0; copy < kCopies; ++copy) {
      const int first = first_of(copy), bytes = min(16, end - first) * row_bytes;
      if (bytes <= 0) break;
      arch::mbarrier_arrive_expect(&shared.arrived[warp][copy], bytes);
      arch::bulk_load(shared.keys[warp][copy],
                      static_cast<const char*>(p.k) + (at.kv_head * p.kv_len + first) * row_bytes, bytes,
                      &shared.arrived[warp][copy]);
    }
  }
  __syncwarp();
  const float scale = p.negative_scale ? -p.scale : p.scale;
  const auto piece = [&](const void* row, int j) {  // zeros behind the row's end
    const int column = 32 * j + 8 * t;
    return column < p.head_dim ? reinterpret_cast<const uint4*>(row)[column / 8] : uint4{};
  };
  uint4 q[kRowTiles][kColumns];  // row g of each tile
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
    const int row = 8 * tile + g;  // token row % q_len of head row / q_len
    const int64_t from = (at.kv_head * p.group + row / p.q_len) * p.q_len + row % p.q_len;
#pragma unroll
    for (int j = 0; j < kColumns; ++j)
      q[tile][j] =
          row < steps.rows ? piece(static_cast<const Element*>(p.q) + from * p.head_dim, j) : uint4{};
  }
  float largest[kRowTiles][2], sum[kRowTiles][2];
  int last[kRowTiles][2];  // key that a row sees
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      largest[tile][e] = -INFINITY;
      sum[tile][e] = 0;
      last[tile][e] = p.last_key(at, (8 * tile + 2 * t + e) % p.q_len);
    }
  }
  for (int copy = 0; copy < kCopies; ++copy) {
    const int begin = first_of(copy);
    if (begin >= end) break;
    arch::mbarrier_wait(&shared.arrived[warp][copy], 0);
    uint4 k[2][kColumns];  // what lies behind the last key is hidden below
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j)
        k[half][j] = piece(shared.keys[warp][copy] + (8 * half + g) * row_bytes, j);
    }
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      float s[4] = {};  // keys g and g + 8, rows 2t and 2t + 1
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        arch::mma_m16n8k16<Element>(s, {k[0][j].x, k[1][j].x, k[0][j].y, k[1][j].y}, q[tile][j].x,
                                    q[tile][j].y);
        arch::mma_m16n8k16<Element>(s, {k[0][j].z, k[1][j].z, k[0][j].w, k[1][j].w}, q[tile][j].z,
                                    q[tile][j].w);
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int row = 8 * tile + 2 * t + e;
        float step_largest = largest[tile][e];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int key = begin + 8 * half + g;
          float& score = s[2 * half + e];
          score = key < end && key <= last[tile][e] ? score * scale : -INFINITY;
          step_largest = arch::larger_or_nan(step_largest, score);
          if (row < steps.rows && key < end)
            steps.scores[(int64_t{list} * steps.rows + row) * slab.pitch + key] = score;
        }
        const float shift = step_largest == -INFINITY ? 0.0f : step_largest;
        sum[tile][e] = sum[tile][e] * arch::exp2_approx(largest[tile][e] - shift) +
                       arch::exp2_approx(s[e] - shift) + arch::exp2_approx(s[2 + e] - shift);
        largest[tile][e] = step_largest;
      }
    }
  }
  // Of the 8 lanes that share rows, then of the warps.
  const auto joined = [](float2 a, float2 b) {
    const float most = arch::larger_or_nan(a.x, b.x), shift = most == -INFINITY ? 0.0f : most;
    return float2{most, a.y * arch::exp2_approx(a.x - shift) + b.y * arch::exp2_approx(b.x - shift)};
  };
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float2 mine{largest[tile][e], sum[tile][e]};
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2) {
        mine = joined(
            mine, {__shfl_xor_sync(0xffffffff, mine.x, lanes), __shfl_xor_sync(0xffffffff, mine.y, lanes)});
      }
      if (g == 0) shared.of_warps[warp][8 * tile + 2 * t + e] = mine;
    }
  }
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < steps.rows) {
    float2 mine = shared.of_warps[0][threadIdx.x];
    for (int other = 1; other < kStepWarps; ++other) mine = joined(mine, shared.of_warps[other][threadIdx.x]);
    steps.partial[(int64_t{list} * steps.chunks + blockIdx.x) * kMostStepRows + threadIdx.x] = mine;
  }
}

// Each key's probabilities, summed over the rows. A row without keys, or with NaN, has none.
static __global__ void __launch_bounds__(kStepThreads)
    pool_steps(const __grid_constant__ AnchorSlab slab, const StepRows steps) {
  __shared__ float normalizers[kMostStepRows];
  const int list = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const float2* const partial = steps.partial + int64_t{list} * steps.chunks * kMostStepRows;
  for (int row = warp; row < steps.rows; row += kStepThreads / 32) {
    float most = -INFINITY, sum = 0;
    for (int chunk = lane; chunk < steps.chunks; chunk += 32)
      most = arch::larger_or_nan(most, partial[chunk * kMostStepRows + row].x);
    most = arch::warp_max_or_nan(most);
    const float shift = most == -INFINITY ? 0.0f : most;
    for (int chunk = lane; chunk < steps.chunks; chunk += 32) {
      const float2 part = partial[chunk * kMostStepRows + row];
      sum += part.y * arch::exp2_approx(part.x - shift);
    }
    sum = arch::warp_sum(sum);
    if (lane == 0) normalizers[row] = most == -INFINITY ? INFINITY : most + log2f(sum);
  }
  __syncthreads();
  const float* const scores = steps.scores + int64_t{list} * steps.rows * slab.pitch;
  for (int i = 0; i < kPoolChunk / kStepThreads / 4; ++i) {
    const int key =
        static_cast<int>(blockIdx.x) * kPoolChunk + 4 * (i * kStepThreads + static_cast<int>(threadIdx.x));
    if (key >= slab.problem.kv_len) break;
    float4 pooled{};
    const auto add = [&](float& sum, float score, float normalizer) {
      sum += fmaxf(arch::exp2_approx(score - normalizer), 0.0f);
    };
    for (int row = 0; row < steps.rows;
         ++row) {  // what lies behind the last key, up to the pitch, is not looked at
      const float4 of_row = *reinterpret_cast<const float4*>(scores + row * slab.pitch + key);
      add(pooled.x, of_row.x, normalizers[row]);
      add(pooled.y, of_row.y, normalizers[row]);
      add(pooled.z, of_row.z, normalizers[row]);
      add(pooled.w, of_row.w, normalizers[row]);
    }
    *reinterpret_cast<float4*>(slab.pooled + int64_t{list} * slab.pitch + key) = pooled;
  }
}

}  // namespace splash::gpu::kascade
