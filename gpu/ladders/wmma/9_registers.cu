// Beyond source 002: mma.sync with scores and probabilities in registers, in the manner of FlashAttention-2
// (Dao 2023). The accumulator of Q K^T has the layout of the left operand of P V, so S never goes through
// shared memory: the union of scores and probabilities, temp_O and three of four barriers go. A warp owns its
// rows from Q to the output.
//
// Predicted: at wgmma's rate, m16n8k16 keeps a quarter of the multiprocessor's tensor cores busy for 4
// cycles; mma.sync reaches about 60 % of that rate, so 6.5. Its right operand is 256 bytes of shared memory.
// With 16 rows per warp the four quarters ask for 1024 bytes every 6.5 cycles: 157 per cycle, and shared
// memory delivers 128. So a warp takes 32 rows and uses each fragment twice: 79 per cycle. At 128 x 64 tiles
// of head_dim 64 that leaves 420 TFLOP/s at most. The softmax (290 issue cycles for 64 x 128 scores beside
// 512 x 1.6 of products) overlaps only with other warps' products, with two or three blocks per
// multiprocessor: some 300. Shared memory is swizzled (no conflicts, no padding). There is one barrier per
// tile, and cp.async has two stages.

#include "gpu/arch/cp_async.cuh"
#include "gpu/arch/ldmatrix.cuh"
#include "gpu/ladders/wmma/register_softmax.cuh"

namespace splash::gpu {
namespace {

using namespace wmma_ladder;

constexpr int kWarps = 4, kThreads = kWarps * kWarp, kStages = 2;
constexpr int kVector = 8;  // 16-bit elements per 16 bytes

template <int kDim>
struct Config {
  static constexpr int kRowTiles = kDim == 256 ? 1 : 2;  // tiles of 16 rows per warp
  static constexpr int kRows = 16 * kRowTiles, kTileM = kWarps * kRows, kTileN = kDim == 256 ? 32 : 64;
};

template <class T, int kDim>
struct Shared {
  T q[Config<kDim>::kTileM * kDim];  // holds the output at the end
  T k[kStages][Config<kDim>::kTileN * kDim], v[kStages][Config<kDim>::kTileN * kDim];
};

// The swizzle: where 16 bytes of a row lie. Eight rows of one column use all banks.
template <int kDim>
__device__ __forceinline__ int swizzled(int row, int vector) {
  return row * kDim + (vector ^ row % 8) * kVector;
}

// The same for an address that moves from `lane_offset` by whole 16 rows and by pairs of vectors. Both steps
// are known at compile time, so an address costs one exclusive or and no register of its own.
template <int kDim>
__device__ __forceinline__ int moved(int lane_offset, int rows, int vectors) {
  return (lane_offset ^ vectors % 8 * kVector) + vectors / 8 * 8 * kVector + rows * kDim;
}

template <int kRows, int kDim, class T>
__device__ __forceinline__ void start_copy(T* shared, const T* matrix, int first, int length, int head_dim) {
  constexpr int kVectors = kDim / kVector;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kVectors; i += kThreads) {
    const int row = i / kVectors, vector = i % kVectors;
    const bool inside = first + row < length && vector * kVector < head_dim;
    const int64_t from = inside ? int64_t{first + row} * head_dim + vector * kVector : 0;
    arch::cp_async_16(shared + swizzled<kDim>(row, vector), matrix + from, inside);
  }
}

// One warp's rows: kRowTiles tiles of 16.
template <class T, int kDim>
struct WarpTile {
  using C = Config<kDim>;
  static constexpr int kRowTiles = C::kRowTiles, kScores = C::kTileN / 2, kOutputs = kDim / 2;
  const T* q;  // its own rows
  int lane;
  int row_offset, key_offset;  // this lane's place in blocks of 16 rows of Q or V, and of K
  float scores[kRowTiles][kScores], out[kRowTiles][kOutputs];
  RowPair rows[kRowTiles];

  __device__ __forceinline__ static float (&block(float* accumulators, int column))[4] {
    return *reinterpret_cast<float(*)[4]>(accumulators + column / 2);  // 8 columns: 4 registers
  }

  // scores = Q K^T
  __device__ __forceinline__ void multiply_scores(const T* k) {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) scores[r][i] = 0;
    }
#pragma unroll
    for (int d = 0; d < kDim; d += 16) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r)
        arch::ldmatrix_x4(a[r], q + moved<kDim>(row_offset, 16 * r, d / kVector));
#pragma unroll
      for (int key = 0; key < C::kTileN; key += 16) {
        uint32_t b[4];
        arch::ldmatrix_x4(b, k + moved<kDim>(key_offset, key, d / kVector));
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          arch::mma_m16n8k16<T>(block(scores[r], key), a[r], b[0], b[1]);
          arch::mma_m16n8k16<T>(block(scores[r], key + 8), a[r], b[2], b[3]);
        }
      }
    }
  }

  // out += P V
  __device__ __forceinline__ void multiply_values(const T* v) {
#pragma unroll
    for (int key = 0; key < C::kTileN; key += 16) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          a[r][i] = arch::pack_pair<T>(scores[r][key / 2 + 2 * i], scores[r][key / 2 + 2 * i + 1]);
      }
#pragma unroll
      for (int column = 0; column < kDim; column += 16) {
        uint32_t b[4];
        arch::ldmatrix_x4_trans(b, v + moved<kDim>(row_offset, key, column / kVector));
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          arch::mma_m16n8k16<T>(block(out[r], column), a[r], b[0], b[1]);
          arch::mma_m16n8k16<T>(block(out[r], column + 8), a[r], b[2], b[3]);
        }
      }
    }
  }

  // Stores the output through the shared memory of the warp's own queries, so that whole rows are stored.
  __device__ __forceinline__ void store(T* rows_of_q, T* to, int valid_rows, int head_dim) {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      const float scale[2] = {rows[r].inverse(0), rows[r].inverse(1)};
#pragma unroll
      for (int i = 0; i < kOutputs; i += 2) {
        const int row = 16 * r + lane / 4 + i % 4 / 2 * 8;
        T* const pair = rows_of_q + swizzled<kDim>(row, i / 4) + 2 * (lane % 4);
        *reinterpret_cast<uint32_t*>(pair) =
            arch::pack_pair<T>(out[r][i] * scale[i % 4 / 2], out[r][i + 1] * scale[i % 4 / 2]);
      }
    }
    __syncwarp();
    constexpr int kVectors = kDim / kVector;
    for (int i = lane; i < C::kRows * kVectors; i += kWarp) {
      const int row = i / kVectors, vector = i % kVectors;
      if (row < valid_rows && vector * kVector < head_dim)
        *reinterpret_cast<uint4*>(to + int64_t{row} * head_dim + vector * kVector) =
            *reinterpret_cast<const uint4*>(rows_of_q + swizzled<kDim>(row, vector));
    }
  }
};

template <class T, int kDim>
__global__ void __launch_bounds__(kThreads) attention(Problem p) {
  using C = Config<kDim>;
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<T, kDim>*>(memory);
  const BlockTask task = block_task(p, C::kTileM, p.causal);
  const T* const k = static_cast<const T*>(p.k) + task.kv_offset;
  const T* const v = static_cast<const T*>(p.v) + task.kv_offset;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int first_query = task.first_query + warp * C::kRows;
  T* const rows_of_q = shared.q + warp * C::kRows * kDim;
  const float scale = fabsf(p.scale_log2);
  const int unmasked_end = p.scale_log2 < 0 ? 0 : end_of_keys(p, first_query);  // keys that all its rows see

  WarpTile<T, kDim> tile;
  tile.q = rows_of_q;
  tile.lane = static_cast<int>(threadIdx.x) % kWarp;
  tile.row_offset = swizzled<kDim>(tile.lane % 16, tile.lane / 16);
  tile.key_offset = swizzled<kDim>(tile.lane / 16 * 8 + tile.lane % 8, tile.lane / 8 % 2);
#pragma unroll
  for (int r = 0; r < C::kRowTiles; ++r) {
#pragma unroll
    for (int i = 0; i < tile.kOutputs; ++i) tile.out[r][i] = 0;
  }
  const auto start_loading = [&](int first_key, int stage) {
    start_copy<C::kTileN, kDim>(shared.k[stage], k, first_key, p.kv_len, p.head_dim);
    start_copy<C::kTileN, kDim>(shared.v[stage], v, first_key, p.kv_len, p.head_dim);
    arch::cp_async_commit();
  };
  start_copy<C::kTileM, kDim>(shared.q, static_cast<const T*>(p.q) + task.q_offset, task.first_query, p.q_len,
                              p.head_dim);
  start_loading(0, 0);

  for (int first_key = 0, stage = 0; first_key < task.end_key; first_key += C::kTileN, stage ^= 1) {
    arch::cp_async_wait<0>();
    __syncthreads();  // this stage has landed, and no warp still reads the other one
    if (first_key + C::kTileN < task.end_key) start_loading(first_key + C::kTileN, stage ^ 1);
    tile.multiply_scores(shared.k[stage]);
#pragma unroll
    for (int r = 0; r < C::kRowTiles; ++r) {
      if (first_key + C::kTileN > unmasked_end) {
        const RowPairMask mask(p, first_query + 16 * r + tile.lane / 4);
        mask.apply(tile.scores[r], first_key + 2 * (tile.lane % 4));
      }
      float correction[2];
      tile.rows[r].exponentiate(tile.scores[r], scale, correction);
      rescale(tile.out[r], correction);
    }
    tile.multiply_values(shared.v[stage]);
  }
  arch::cp_async_wait<0>();
  __syncthreads();  // for a block without keys: no warp's copy of Q may land on another warp's output
  T* const to = static_cast<T*>(p.out) + task.q_offset + int64_t{first_query} * p.head_dim;
  tile.store(rows_of_q, to, p.q_len - first_query, p.head_dim);
}

Plan plan(const AttentionSpec& spec, Dtype dtype, const DeviceInfo&) {
  return for_instance(dtype, spec.shape.head_dim, [&](auto instance) {
    using I = decltype(instance);
    using T = typename I::Element;
    using C = Config<I::kHeadDim>;
    return tiled_plan(
        spec, {.q = C::kTileM, .k = C::kTileN, .stages = kStages}, "registers", kThreads,
        {reinterpret_cast<const void*>(attention<T, I::kHeadDim>), sizeof(Shared<T, I::kHeadDim>)});
  });
}

std::vector<KernelTrace> trace(const AttentionSpec& spec, Dtype dtype, const Plan& plan) {
  return trace_walk(spec, dtype, plan, {.longest_first = true, .first_anyway = true, .threads_of_row = 4});
}

const Variant kVariant{
    .ladder = "wmma",
    .rung = 9,
    .name = "registers",
    .idea = "mma.sync with scores and probabilities in registers, swizzled shared memory, one barrier a tile",
    .finding =
        "1.6x at B 2, 4.8x at B 4, H 16, S 4096, and 260 TFLOP/s at 16k, d 64, full, where 300 were "
        "predicted and PyTorch's flash backend reaches 302.",
    .limits = limits_of({.compute_capability = 80}),
    .plan = plan,
    .launch = launch_tiles,
    .trace = trace};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
