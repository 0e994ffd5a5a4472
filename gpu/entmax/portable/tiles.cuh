#pragma once
// Computes the scores of a block's queries, one tile of keys after the other. A warp owns 16 queries.
// cp.async copies keys into two stages, a chunk (up to 256 bytes of each key's row) at a time. Rows in shared
// memory are padded by 16 bytes, so that the eight rows of an ldmatrix matrix lie in different banks.
//
// Who writes what, and when: all threads copy into stages[s] after the barrier at which all have finished
// reading s, and the copies have arrived at the next barrier (one __syncthreads per chunk serves both
// stages). Queries are written once; where they stay in registers, their shared memory is free after the
// constructor.
//
// A lane's scores: acc[j][2 half + e] is that of row lane / 4 + 8 half of its warp and key 8 j + 2 (lane % 4)
// + e of the tile. So a row's scores lie in the four lanes of a quad.

#include "gpu/arch/cp_async.cuh"
#include "gpu/arch/cp_async_4.cuh"
#include "gpu/arch/ldmatrix.cuh"
#include "gpu/arch/mma.cuh"
#include "gpu/entmax/portable/visible.cuh"

namespace splash::gpu::entmax::portable {

// kDim: the most head dimensions.
template <class T, int kDim>
struct Tiles {
  static constexpr int kRowBytes = kDim * static_cast<int>(sizeof(T));
  static constexpr int kChunkBytes = kRowBytes < 256 ? kRowBytes : 256;  // of a key's row, per stage
  static constexpr int kWarps = kRowBytes > 512 ? 2 : 4, kThreads = 32 * kWarps,
                       kQueries = kWarps * kWarpRows;
  static constexpr int kQueryStride = kRowBytes + 16, kKeyStride = kChunkBytes + 16;
  // Tensor cores take queries from registers where there are enough; that frees their shared memory.
  static constexpr bool kInRegisters = sizeof(T) == 2 && kRowBytes <= 256;
  static constexpr int kSteps = kChunkBytes / 32;  // of 16 dimensions, of 16-bit elements

  struct Stage {
    alignas(16) unsigned char keys[kTileKeys * kKeyStride];
    int positions[kTileKeys];  // of the keys, where the mask has positions
  };
  struct Queries {
    alignas(16) unsigned char rows[kQueries * kQueryStride];
  };
};

using Scores = float[kTileKeys / 8][4];

// Calls use(score, which key of the tile) for each of the lane's scores of one row.
template <class ScoresOf, class Use>
__device__ __forceinline__ void for_each_score(ScoresOf& acc, int half, const Use& use) {
  const int first = 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
  for (int j = 0; j < kTileKeys / 8; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) use(acc[j][2 * half + e], 8 * j + first + e);
  }
}

// kHold: queries for tensor cores stay in registers; see Tiles::kInRegisters.
template <class T, int kDim, bool kHold>
class Products {
  using Tiles = portable::Tiles<T, kDim>;
  static_assert(!kHold || Tiles::kInRegisters);

 public:
  // Loads the block's queries; all threads call it. query: the lane's two rows, -1 where there is none.
  // query_of: of each of the block's rows. Where queries stay in registers, `queries` may be overwritten
  // afterwards.
  template <class QueryOf>
  __device__ __forceinline__ Products(const PortableProblem& p, typename Tiles::Stage (&stages)[2],
                                      typename Tiles::Queries& queries, KeyRange& block, int head,
                                      const int (&query)[2], const QueryOf& query_of)
      : p_(p),
        stages_(stages),
        queries_(queries),
        rows_(p, head, query),
        biases_(p.bias.of_head(head % p.q_heads)),
        query_{query[0], query[1]} {
    const int row_bytes = p.head_dim * static_cast<int>(sizeof(T));
    chunks_ = (row_bytes + Tiles::kChunkBytes - 1) / Tiles::kChunkBytes;
    keys_ = static_cast<const char*>(p.k) + int64_t{head / p.group} * p.kv_len * row_bytes;
    k_positions_ = p.mask.k_positions == nullptr
                       ? nullptr
                       : p.mask.k_positions + int64_t{head} * p.mask.k_tables / p.heads * p.kv_len;
    const char* const from = static_cast<const char*>(p.q) + int64_t{head} * p.q_len * row_bytes;
    constexpr int kUnits = Tiles::kRowBytes / 16;
    for (int i = static_cast<int>(threadIdx.x); i < Tiles::kQueries * kUnits; i += Tiles::kThreads) {
      const int row = i / kUnits, byte = i % kUnits * 16, query_index = query_of(row);
      const bool valid = query_index >= 0 && byte < row_bytes;
      arch::cp_async_16(queries.rows + row * Tiles::kQueryStride + byte,
                        valid ? from + int64_t{query_index} * row_bytes + byte : from, valid);
    }
    arch::cp_async_commit();
    if (threadIdx.x == 0) block = {p.kv_len, 0};
    __syncthreads();
    rows_.join(block);
    arch::cp_async_wait<0>();
    __syncthreads();  // all queries are there, and what the block sees is known
    begin_ = block.begin;
    end_ = block.end;
    if constexpr (kHold) {
#pragma unroll
      for (int step = 0; step < Tiles::kSteps; ++step) load_fragment(fragments_[step], step);
      __syncthreads();  // all have read
    }
  }

  __device__ __forceinline__ const VisibleRows& rows() const {
    return rows_;
  }

  // Calls use(scores, first key of the tile), by whole warps, for the tiles of which the warp's rows see
  // keys; scores of keys that a row does not see are -inf. use may change the scores. wants(): whether the
  // warp needs another tile; once no warp of the block does, the loop ends. All threads call it.
  template <bool kDescending, class Use, class Wants>
  __device__ __forceinline__ void for_each_tile(const Use& use, const Wants& wants) {
    if (begin_ >= end_) return;  // for all threads alike
    const int first = begin_ / kTileKeys, tiles = (end_ - 1) / kTileKeys - first + 1;
    const auto key_of = [&](int tile) {
      return kTileKeys * (kDescending ? first + tiles - 1 - tile : first + tile);
    };
    // The first tile from `tile` on of which some row sees a pair; all threads call it.
    const auto seen_from = [&](int tile) {
      if (p_.mask.pairs == nullptr) return tile;
      while (tile < tiles && !__syncthreads_or(rows_.warp_sees(key_of(tile)))) ++tile;
      return tile;
    };
    __syncthreads();  // all warps have left the stages of the previous pass
    int next = seen_from(0);
    if (next < tiles) start(key_of(next), 0, stages_[0]);
    int stage = 0;
#pragma unroll 1
    while (next < tiles) {
      const int tile = next;
      const int key = key_of(tile);
      const bool wanted = wants(), seen = wanted && rows_.warp_sees(key);
      Scores acc = {};
#pragma unroll 1
      for (int chunk = 0; chunk < chunks_; ++chunk, stage ^= 1) {
        arch::cp_async_wait<0>();
        // All threads' copies of this stage have arrived, and all have left the other one. No copy is in
        // flight.
        if (!__syncthreads_or(wanted)) return;
        if (chunk + 1 < chunks_) {
          start(key, chunk + 1, stages_[stage ^ 1]);
        } else {
          next = seen_from(tile + 1);
          if (next < tiles) start(key_of(next), 0, stages_[stage ^ 1]);
        }
        if (seen) multiply(acc, stages_[stage].keys, chunk);
      }
      if (!seen) continue;
      if (p_.cap > 0) cap_scores(acc);
      if (p_.bias.table != nullptr) add_biases(acc, key);
      rows_.hide(acc, key, k_positions_ != nullptr ? stages_[stage ^ 1].positions : nullptr);
      use(acc, key);
    }
  }

  // All tiles, the first keys first.
  template <class Use>
  __device__ __forceinline__ void for_each_tile(const Use& use) {
    for_each_tile<false>(use, [] { return true; });
  }

 private:
  // Starts the copies of one chunk of 64 keys' rows, with zeros past the last key or dimension.
  __device__ __forceinline__ void start(int first_key, int chunk, typename Tiles::Stage& stage) const {
    constexpr int kUnits = Tiles::kChunkBytes / 16, kCopies = kTileKeys * kUnits / Tiles::kThreads;
    static_assert(kTileKeys * kUnits % Tiles::kThreads == 0 && Tiles::kThreads >= kTileKeys);
    const auto thread = static_cast<int>(threadIdx.x);
    const int row_bytes = p_.head_dim * static_cast<int>(sizeof(T));
#pragma unroll 2  // more would cost registers
    for (int i = 0; i < kCopies; ++i) {
      const int at = i * Tiles::kThreads + thread, row = at / kUnits, unit = at % kUnits * 16;
      const int key = first_key + row, byte = chunk * Tiles::kChunkBytes + unit;
      const bool valid = key < p_.kv_len && byte < row_bytes;
      arch::cp_async_16(stage.keys + row * Tiles::kKeyStride + unit,
                        valid ? keys_ + int64_t{key} * row_bytes + byte : keys_, valid);
    }
    if (k_positions_ != nullptr && thread < kTileKeys && first_key + thread < p_.kv_len)
      arch::cp_async_4(&stage.positions[thread], k_positions_ + first_key + thread);
    arch::cp_async_commit();
  }

  __device__ __forceinline__ void cap_scores(Scores& acc) const {
#pragma unroll
    for (auto& row : acc) {
#pragma unroll
      for (float& score : row) score = p_.cap * tanhf(score / p_.cap);
    }
  }

  // Scores are in units of <q, k>.
  __device__ __forceinline__ void add_biases(Scores& acc, int first_key) const {
    const float per_scale = 1 / p_.scale;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      for_each_score(acc, half, [&](float& score, int in_tile) {
        score = fmaf(biases_[p_.bias.entry(query_[half], first_key + in_tile)], per_scale, score);
      });
    }
  }

  __device__ __forceinline__ void load_fragment(uint32_t (&a)[4], int step) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    arch::ldmatrix_x4(
        a, queries_.rows + (warp * kWarpRows + lane % 16) * Tiles::kQueryStride + lane / 16 * 16 + 32 * step);
  }

  __device__ __forceinline__ void multiply(Scores& acc, const unsigned char* keys, int chunk) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if constexpr (sizeof(T) == 2) {
      const int left = (p_.head_dim - chunk * (Tiles::kChunkBytes / 2) + 15) / 16;  // steps inside head_dim
      const unsigned char* const k =
          keys + (lane % 8 + lane / 16 * 8) * Tiles::kKeyStride + lane / 8 % 2 * 16;
#pragma unroll
      for (int step = 0; step < Tiles::kSteps; ++step) {
        if (step >= left) break;
        uint32_t a[4], b[4];
        if constexpr (kHold) {
#pragma unroll
          for (int i = 0; i < 4; ++i) a[i] = fragments_[step][i];
        } else {
          load_fragment(a, chunk * Tiles::kSteps + step);
        }
#pragma unroll
        for (int j = 0; j < kTileKeys / 8; j += 2) {
          arch::ldmatrix_x4(b, k + j * 8 * Tiles::kKeyStride + 32 * step);
          arch::mma_m16n8k16<T>(acc[j], a, b[0], b[1]);
          arch::mma_m16n8k16<T>(acc[j + 1], a, b[2], b[3]);
        }
      }
    } else {
      // Why not split each float into two tf32 halves and use three tensor-core products: where tensor cores
      // multiply tf32 at float32's rate (compute capability 8.6, 8.9) these cost as much or more; and 1
      // splits into 1 and 0, so that 1 times infinity would give NaN.
      const int left = min((p_.head_dim - chunk * (Tiles::kChunkBytes / 4)) / 4, Tiles::kChunkBytes / 16);
      const int warp = static_cast<int>(threadIdx.x) / 32;
      const unsigned char* const q =
          queries_.rows + (warp * kWarpRows + lane / 4) * Tiles::kQueryStride + chunk * Tiles::kChunkBytes;
      const unsigned char* const k = keys + 2 * (lane % 4) * Tiles::kKeyStride;
#pragma unroll 1
      for (int four = 0; four < left; ++four) {
        const auto x = *reinterpret_cast<const float4*>(q + 16 * four);
        const auto y = *reinterpret_cast<const float4*>(q + 8 * Tiles::kQueryStride + 16 * four);
#pragma unroll
        for (int j = 0; j < kTileKeys / 8; ++j) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const auto z = *reinterpret_cast<const float4*>(k + (8 * j + e) * Tiles::kKeyStride + 16 * four);
            acc[j][e] = fmaf(x.w, z.w, fmaf(x.z, z.z, fmaf(x.y, z.y, fmaf(x.x, z.x, acc[j][e]))));
            acc[j][2 + e] = fmaf(y.w, z.w, fmaf(y.z, z.z, fmaf(y.y, z.y, fmaf(y.x, z.x, acc[j][2 + e]))));
          }
        }
      }
    }
  }

  const PortableProblem& p_;
  typename Tiles::Stage (&stages_)[2];
  const typename Tiles::Queries& queries_;
  VisibleRows rows_;
  const float* biases_;  // of the head; read where there are any
  int query_[2];         // of the lane's rows
  const char* keys_;
  const int* k_positions_;
  int chunks_, begin_, end_;
  uint32_t fragments_[kHold ? Tiles::kSteps : 1][4] = {};
};

}  // namespace splash::gpu::entmax::portable
