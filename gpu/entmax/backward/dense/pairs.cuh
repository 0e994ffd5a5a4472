#pragma once
// Pairs of products on tensor cores. A block holds rows of two matrices in shared memory, and TMA streams
// tiles of two others through a ring of stages. The first pair of products, held rows times tile, gives
// scores and a second product. Both become weights in registers, and the second pair of products multiplies
// these with the same tiles.
//
//   dense_queries   holds Q, dO    streams K, V     scores = Q K', second = dO V'
//   dense_keys      holds K, V     streams Q, dO    scores = K Q', second = V dO'
//
// Each of the block's two warpgroups takes 64 rows. While one turns scores into weights, the tensor cores run
// the other's products.

#include "gpu/arch/bulk_copy.cuh"
#include "gpu/arch/mbarrier.cuh"
#include "gpu/arch/wgmma.cuh"
#include "gpu/entmax/backward/problem.h"
#include "gpu/entmax/hopper/dense/sums.cuh"
#include "gpu/entmax/math/vectors.cuh"

namespace splash::gpu::entmax::backward {

using hopper::any_above_0;
using hopper::Arithmetic;
using hopper::Kind;
using hopper::kPart;
using hopper::kStep;
using hopper::kStepScores;
using hopper::log2_approx;

static_assert(kDenseTile == kPart, "a tile is what one product takes");

template <int kPanels>  // of 64 dimensions
struct PairTiles {
  static constexpr int kThreads = 256, kRows = 128;
  // Tiles of each tensor per TMA load. Two take scores of two tiles in registers, which kPanels == 1 allows.
  static constexpr int kParts = kPanels == 1 ? 2 : 1, kStages = 4;
  static constexpr int kPanelBytes = kParts * kDenseTile * 128;
  alignas(1024) unsigned char ring[kStages][2][kPanels * kPanelBytes];
  alignas(1024) unsigned char held[2][kPanels * kRows * 128];
  alignas(16) float facts[kStages][kParts][kFacts][kDenseTile];
  uint64_t full[kStages], empty[kStages];
};

// What is streamed: a head's tiles of two tensors, and the facts of their rows (null: none).
struct PairStream {
  const CUtensorMap &first, &second;
  int head;
  const float* facts;  // [tiles, kFacts, kDenseTile]
};

// acc[4 j + 2 half + e], as wgmma leaves it, belongs to the lane's row `half` and column 8 j + 2 (lane % 4) +
// e.
using PairScores = float[kDenseTile / 2];
using PairWeights = uint32_t[kDenseTile / 16][4];  // as wgmma takes them

__device__ __forceinline__ void clear(uint32_t (&weights_of_step)[4]) {
#pragma unroll
  for (uint32_t& pair : weights_of_step) pair = 0;
}

template <class T, int kPanels>
class PairProducts {
 public:
  using Tiles = PairTiles<kPanels>;
  using Sums = float[32 * kPanels];
  static constexpr int kStages = Tiles::kStages, kParts = Tiles::kParts, kPartBytes = kDenseTile * 128;

  __device__ __forceinline__ explicit PairProducts(Tiles& shared) : shared_(shared) {
    if (threadIdx.x == 0) {
      for (int s = 0; s < kStages; ++s) {
        arch::mbarrier_init(&shared_.full[s], 1);
        arch::mbarrier_init(&shared_.empty[s], Tiles::kThreads / 32);
      }
      arch::mbarrier_init_fence();
    }
    __syncthreads();
  }

  // Loads the held rows: those from `first` on, of `rows`. Missing rows and dimensions past head_dim are
  // zeros.
  __device__ __forceinline__ void hold(const void* first_matrix, const void* second_matrix, int first,
                                       int rows, int head_dim) {
    constexpr int kChunks = 8 * kPanels;  // of 16 bytes
    const uint16_t* const matrices[2] = {static_cast<const uint16_t*>(first_matrix),
                                         static_cast<const uint16_t*>(second_matrix)};
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      for (int i = static_cast<int>(threadIdx.x); i < Tiles::kRows * kChunks; i += Tiles::kThreads) {
        const int row = i / kChunks, chunk = i % kChunks;
        const uint4 loaded = first + row < rows && 8 * chunk < head_dim
                                 ? load8(matrices[m] + int64_t{first + row} * head_dim + 8 * chunk)
                                 : uint4{};
        store8(shared_.held[m] + chunk / 8 * Tiles::kRows * 128 +
                   arch::swizzled_offset(arch::Swizzle::bytes128, row, chunk % 8 * 16),
               loaded);
      }
    }
    arch::fence_async_proxy();
    __syncthreads();
  }

  static __device__ __forceinline__ int lane() {
    return static_cast<int>(threadIdx.x) % 32;
  }
  // Row numbers in the block: the first of the warp, the first of the warpgroup, and the lane's row `half`.
  static __device__ __forceinline__ int warp_row() {
    return static_cast<int>(threadIdx.x) / 32 * 16;
  }
  static __device__ __forceinline__ int group_row() {
    return static_cast<int>(threadIdx.x) / 128 * 64;
  }
  static __device__ __forceinline__ int row_of(int half) {
    return warp_row() + lane() / 4 + 8 * half;
  }

  // First calls begin(second product of the first tile), unless begin is null. Then takes the tiles from
  // `first` to below `end`, both multiples of kParts, in groups of kParts. Skips a group unless visible(its
  // first tile, facts). For each tile of the others:
  //   first_weights(scores, weights, tile, facts), which may change scores;
  //   a += weights times the tile of the second tensor, or of the first where not kOfSecond;
  //   second_weights(scores, products, weights, facts); b += weights times the tile of the first tensor.
  template <bool kOfSecond, class Begin, class Visible, class First, class Second>
  __device__ __forceinline__ void stream(const PairStream& from, int first, int end, Sums& a, Sums& b,
                                         const Begin& begin, const Visible& visible,
                                         const First& first_weights, const Second& second_weights) {
    constexpr int kAhead = (kStages - 2) * kParts;
    const auto load_tiles = [&](int tile) {
      if (threadIdx.x == 0 && tile < end) load(from, tile);
      __syncwarp();
    };
    for (int i = 0; i < kAhead; i += kParts) load_tiles(first + i);
    if constexpr (!std::is_null_pointer_v<Begin>) {
      if (first >= end) return;
      PairScores products;
      arch::mbarrier_wait(&shared_.full[used_.stage], used_.parity);
      multiply(products, 1, shared_.ring[used_.stage][1]);
      arch::wgmma_wait<0>();
      arch::wgmma_hold(products);
      begin(products);
    }
#pragma unroll 1
    for (int tile = first; tile < end; tile += kParts) {
      load_tiles(tile + kAhead);
      arch::mbarrier_wait(&shared_.full[used_.stage], used_.parity);
      const auto& facts = shared_.facts[used_.stage];
      if (visible(tile, facts)) {
        const auto& stage = shared_.ring[used_.stage];
        const auto part_of = [&](int m, int part) { return stage[m] + part * kPartBytes; };
        PairScores scores[kParts], products;
        PairWeights of_first, of_second;
        multiply(scores[0], 0, part_of(0, 0));
        multiply(products, 1, part_of(1, 0));
        // To keep the tensor cores busy, the next part's scores are in flight while second_weights runs, and
        // its second product is issued before first_weights runs. No product stays in flight past the loop's
        // end: ptxas would then serialise all products.
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          if (part == 0) {
            arch::wgmma_wait<1>();
          } else {
            arch::wgmma_wait<2>();
          }
          arch::wgmma_hold(scores[part]);
          first_weights(scores[part], of_first, tile + part, facts[part]);
          add(a, of_first, part_of(kOfSecond ? 1 : 0, part));
          if (part + 1 < kParts) {
            multiply(scores[part + 1], 0, part_of(0, part + 1));
            arch::wgmma_wait<2>();
          } else {
            arch::wgmma_wait<1>();
          }
          arch::wgmma_hold(products);
          second_weights(scores[part], products, of_second, facts[part]);
          add(b, of_second, part_of(0, part));
          if (part + 1 < kParts) multiply(products, 1, part_of(1, part + 1));
        }
        arch::wgmma_wait<0>();
        arch::wgmma_hold(a);
        arch::wgmma_hold(b);
      }
      // One lane arrives for its warp. racecheck does not follow __syncwarp so far, and reports races of
      // bulk_load with the other lanes' reads of facts; where every lane arrives it reports none.
      __syncwarp();
      if (lane() == 0) arch::mbarrier_arrive(&shared_.empty[used_.stage]);
      used_.next();
    }
  }

 private:
  using Position = arch::RingPosition<kStages>;

  // One thread.
  __device__ __forceinline__ void load(const PairStream& from, int tile) {
    constexpr int kFactBytes = sizeof shared_.facts[0];
    const int stage = loaded_.stage;
    uint64_t* const full = &shared_.full[stage];
    arch::mbarrier_wait(&shared_.empty[stage], loaded_.parity ^ 1);
    arch::mbarrier_arrive_expect(full, sizeof shared_.ring[0] + (from.facts != nullptr ? kFactBytes : 0));
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const int at = panel * Tiles::kPanelBytes, row = tile * kDenseTile;
      arch::tensor_load(shared_.ring[stage][0] + at, &from.first, full, 64 * panel, row, from.head);
      arch::tensor_load(shared_.ring[stage][1] + at, &from.second, full, 64 * panel, row, from.head);
    }
    if (from.facts != nullptr) {
      arch::bulk_load(shared_.facts[stage], from.facts + int64_t{tile} * (kFacts * kDenseTile), kFactBytes,
                      full);
    }
    loaded_.next();
  }

  // scores = the held rows of matrix m times a tile's, transposed.
  __device__ __forceinline__ void multiply(PairScores& scores, int m, const unsigned char* tile) {
    arch::wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4 * kPanels; ++step) {
      const uint64_t of_tile =
          arch::advance(arch::k_major_descriptor(tile + step / 4 * Tiles::kPanelBytes), 32 * (step % 4));
      const unsigned char* const panel = shared_.held[m] + (step / 4 * Tiles::kRows + group_row()) * 128;
      arch::wgmma<T>(scores, arch::advance(arch::k_major_descriptor(panel), 32 * (step % 4)), of_tile,
                     step > 0);
    }
    arch::wgmma_commit();
  }

  // sums += weights times a tile.
  __device__ __forceinline__ void add(Sums& sums, const PairWeights& weights, const unsigned char* tile) {
    const uint64_t descriptor = arch::mn_major_descriptor(tile, Tiles::kPanelBytes);
    arch::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kDenseTile / 16; ++step)
      arch::wgmma<T, arch::Major::mn>(sums, weights[step], arch::advance(descriptor, 16 * step * 128), true);
    arch::wgmma_commit();
  }

  Tiles& shared_;
  Position used_, loaded_;
};

// Whether any head has dense rows. By the whole block.
__device__ __forceinline__ bool any_dense_rows(const BackwardProblem& p) {
  const auto heads = static_cast<int>(p.rows / p.q_len);
  bool any = false;
  for (int head = static_cast<int>(threadIdx.x); head < heads; head += static_cast<int>(blockDim.x))
    any |= p.dense.from.rows.counts[head] > 0;
  return __syncthreads_or(any) != 0;
}

// Takes the next work item that no block has taken. By the whole block.
__device__ __forceinline__ int take_work(uint32_t* queue) {
  // Shared variables are static in any case; on the CPU (tests/simt) it must be said.
  static __shared__ uint32_t next;
  __syncthreads();  // all threads have read the last item and finished it
  if (threadIdx.x == 0) next = atomicAdd(queue, 1);
  __syncthreads();
  return static_cast<int>(next);
}

__device__ __forceinline__ float* facts_of(const BackwardProblem& p, int head) {
  return p.dense.facts + int64_t{head} * p.dense.tiles * (kFacts * kDenseTile);
}
__device__ __forceinline__ float& fact_of(float* of_head, int row, Fact fact) {
  return of_head[(row / kDenseTile * kFacts + fact) * kDenseTile + row % kDenseTile];
}
__device__ __forceinline__ int begin_of(float* of_head, int row) {
  return __float_as_int(fact_of(of_head, row, kBegin));
}
__device__ __forceinline__ int end_of(float* of_head, int row) {
  return __float_as_int(fact_of(of_head, row, kEnd));
}

// Factors on the weights before they are rounded to 16 bits: float16 would lose small ones. p <= 1, so it
// does not overflow. A gradient of <q, k> that does becomes infinite, and alone.cuh computes its row or key
// again.
template <class T>
inline constexpr float kProbabilityScale = std::is_same_v<T, __half> ? 16384.0f : 1.0f;
template <class T>
inline constexpr float kGradientScale = std::is_same_v<T, __half> ? 16.0f : 1.0f;
template <class T, Kind kKind>
inline constexpr float kSlopeScale = std::is_same_v<T, __half>&& kKind == Kind::any ? 1024.0f : 1.0f;

// kGradientScale (g - delta)
template <class T>
__device__ __forceinline__ float centred(float g, float delta) {
  constexpr float kScale = kGradientScale<T>;
  if constexpr (kScale == 1) return g - delta;
  return fmaf(kScale, g, -kScale * delta);
}

template <Kind kKind>
__device__ __forceinline__ Arithmetic<kKind> arithmetic_of(const BackwardProblem& p, int head) {
  const float alpha = p.alpha[p.alphas == 1 ? 0 : head % static_cast<int>(p.q_heads)];
  return {(alpha - 1) * p.scale, 1 / (alpha - 1)};
}

// Calls use.operator()<Kind>() with the kind of the head's alpha.
template <class Use>
__device__ __forceinline__ void for_kind(const BackwardProblem& p, int head, const Use& use) {
  const float alpha = p.alpha[p.alphas == 1 ? 0 : head % static_cast<int>(p.q_heads)];
  if (alpha == 1.5f) {
    use.template operator()<Kind::square>();
  } else if (alpha == 2.0f) {
    use.template operator()<Kind::linear>();
  } else {
    use.template operator()<Kind::any>();
  }
}

// What the launch of a kernel built on PairTiles needs.
template <int kPanels>
DenseKernel pair_kernel(void (*kernel)(const BackwardProblem, const CUtensorMap, const CUtensorMap)) {
  using Tiles = PairTiles<kPanels>;
  return {.function = reinterpret_cast<const void*>(kernel),
          .threads = Tiles::kThreads,
          .shared_bytes = int{sizeof(Tiles)},
          .rows = Tiles::kRows,
          .tile_rows = Tiles::kParts * kDenseTile};
}

}  // namespace splash::gpu::entmax::backward
