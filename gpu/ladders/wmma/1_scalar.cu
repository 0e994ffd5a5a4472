// V1 of source 002: tiles of 32 queries by 32 keys in shared memory, every product by scalar fused
// multiply-adds.
//
// Predicted: B 2, H 8, S 512, d 64 is 0.54 G multiply-adds. Each reads two operands from shared memory as
// single fp16 numbers and converts them: about 5 instructions. 2.7 G lane-instructions / (132 x 128 lanes x
// 1.8 GHz) = 0.09 ms at best, and 256 blocks of 4 warps are too few to hide the latency of shared memory.

#include "gpu/ladders/wmma/rows.cuh"

namespace splash::gpu {
namespace {

using namespace wmma_ladder;

constexpr int kTileM = 32, kWarps = 4, kThreads = kWarps * kWarp;

template <class T, int kDim>
struct Shared {
  static constexpr int kStride = kDim + 8;  // a warp reads 32 rows: not all in one bank
  T q[kTileM * kStride], k[kTileN * kStride], v[kTileN * kStride];
  float probabilities[kTileM * kTileN];
};

template <class T, int kDim>
__global__ void __launch_bounds__(kThreads) attention(Problem p) {
  using Tiles = Shared<T, kDim>;
  constexpr int kStride = Tiles::kStride;
  extern __shared__ uint4 memory[];
  auto& tiles = *reinterpret_cast<Tiles*>(memory);
  Rows<kTileM, kWarps, kDim> rows;
  const BlockTask task = block_task(p, kTileM);
  const T* const k = static_cast<const T*>(p.k) + task.kv_offset;
  const T* const v = static_cast<const T*>(p.v) + task.kv_offset;
  load_rows<kTileM, kDim, kStride, kThreads>(tiles.q, static_cast<const T*>(p.q) + task.q_offset,
                                             task.first_query, p.q_len, p.head_dim);

  for (int first_key = 0; first_key < task.end_key; first_key += kTileN) {
    load_rows<kTileN, kDim, kStride, kThreads>(tiles.k, k, first_key, p.kv_len, p.head_dim);
    load_rows<kTileN, kDim, kStride, kThreads>(tiles.v, v, first_key, p.kv_len, p.head_dim);
    __syncthreads();  // the tiles are there
#pragma unroll
    for (int i = 0; i < rows.kCount; ++i) {
      const T* const query = tiles.q + rows.row(i) * kStride;
      const T* const key = tiles.k + rows.lane() * kStride;
      float score = 0;
      for (int d = 0; d < kDim; ++d) score += widened(query[d]) * widened(key[d]);
      score = rows.masked(p, task, i, first_key, score);
      rows.raise_max(i, score);
      rows.exponentiate(i, score);
      rows.add_sum(i);
      tiles.probabilities[rows.row(i) * kTileN + rows.lane()] = rows.probability[i];
    }
    __syncwarp();  // a warp reads only the rows that it wrote
#pragma unroll
    for (int i = 0; i < rows.kCount; ++i) {
#pragma unroll
      for (int c = 0; c < rows.kColumns; ++c) {
        float sum = 0;
        for (int j = 0; j < kTileN; ++j)
          sum += tiles.probabilities[rows.row(i) * kTileN + j] *
                 widened(tiles.v[j * kStride + rows.lane() + c * kWarp]);
        rows.out[i][c] = rows.out[i][c] * rows.correction[i] + sum;
      }
    }
    __syncthreads();  // no warp still reads the tiles that the next ones replace
  }
  rows.template write<T>(p, task);
}

Plan plan(const AttentionSpec& spec, Dtype dtype, const DeviceInfo&) {
  const Entry entry = for_instance(dtype, spec.shape.head_dim, [](auto instance) {
    using I = decltype(instance);
    using T = typename I::Element;
    return Entry{reinterpret_cast<const void*>(attention<T, I::kHeadDim>), sizeof(Shared<T, I::kHeadDim>)};
  });
  return tiled_plan(spec, {.q = kTileM, .k = kTileN}, "scalar", kThreads, entry, MathUnit::fp32);
}

const Variant kVariant{
    .ladder = "wmma",
    .rung = 1,
    .name = "scalar",
    .idea = "shared-memory tiles of 32 queries by 32 keys, products by scalar fp32 multiply-adds",
    .finding =
        "95.9 us at B 2, H 8, S 512, d 64 (11 TFLOP/s): every multiply-add waits for two 16-bit loads from "
        "shared memory and two conversions.",
    .limits = limits_of({.compute_capability = 75}),
    .plan = plan,
    .launch = launch_tiles,
    .trace = trace_tiles};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
