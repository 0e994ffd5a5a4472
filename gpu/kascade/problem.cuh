#pragma once
// A problem as kernels see it, and where the rows and keys of a tile lie. A tile is 32 tokens (or another
// number: Selection::block) x the query heads of one key head, which read one rising list of keys. A thread
// block takes 128 (or 64, ...) of its rows: row r is token r % 32 of the tile and head r / 32 of the group.

#include <cmath>
#include <numbers>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "gpu/arch/reduce.cuh"
#include "gpu/cuda_check.h"
#include "gpu/engine/variant.h"
#include "gpu/entmax/schedule/launch.cuh"
#include "gpu/kascade/kascade.h"

namespace splash::gpu::kascade {

constexpr int kTokens = 32;             // tokens per tile, for kernels compiled for one size
constexpr int kHiddenKey = 0x7fffffff;  // pads the keys of a tile: larger than all

// What a thread block works on. Key heads count over all batches.
struct TileAddress {
  int64_t kv_head = 0;
  int tile = 0, first_row = 0;
};

// A kernel parameter. kFixedTokens: tokens per tile if known at compile time; 0: Selection::block tokens.
template <int kFixedTokens>
struct ProblemOf {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void* out = nullptr;
  const int32_t *key_indices = nullptr, *key_counts = nullptr;
  const int32_t* anchor_heads = nullptr;  // [kv_heads]: whose lists each key head reads; null: its own
  const int32_t* starts = nullptr;        // [batch]: the first key that a sequence sees; null: 0
  Pages pages{};                          // of steps alone
  int64_t k_keep = 0;
  int items = 0;  // row blocks of all tiles of all key heads, over all batches
  int kv_heads = 1, group = 1, q_len = 1, kv_len = 1, head_dim = 8, tiles = 1;
  int rows = 128, row_blocks = 1;  // of a thread block; thread blocks a tile
  int parts = 1;                   // of a list, each for a thread block: items is that many times as large
  float scale = 1;                 // times log2(e), without its sign
  bool causal = false, negative_scale = false;
  int any_tokens = kFixedTokens;

  __host__ __device__ constexpr int tokens() const { return kFixedTokens > 0 ? kFixedTokens : any_tokens; }

  static ProblemOf of(const AttentionSpec& spec, int rows, const Arguments& a = {}) {
    const AttentionShape& s = spec.shape;
    ProblemOf p{
        .q = a.q, .k = a.k, .v = a.v, .out = a.out, .key_indices = a.key_indices, .key_counts = a.key_counts};
    p.k_keep = spec.selection.k_keep;
    p.kv_heads = static_cast<int>(s.kv_heads);
    p.group = static_cast<int>(s.group());
    p.q_len = static_cast<int>(s.q_len);
    p.kv_len = static_cast<int>(s.kv_len);
    p.head_dim = static_cast<int>(s.head_dim);
    p.any_tokens = static_cast<int>(kFixedTokens > 0 ? kFixedTokens : spec.selection.block);
    p.tiles = (p.q_len + p.tokens() - 1) / p.tokens();
    p.rows = rows;
    p.row_blocks = (p.group * p.tokens() + rows - 1) / rows;
    p.items = static_cast<int>(s.batch * s.kv_heads * p.tiles * p.row_blocks);
    p.scale = static_cast<float>(std::abs(spec.score_scale()) * std::numbers::log2e);
    p.negative_scale = spec.score_scale() < 0;
    p.causal = spec.mask.causal;
    return p;
  }

  // Key heads come one after the other, so that K and V of one stay in L2. The last tile of a head comes
  // first: under a causal mask its list is the longest, and the GPU must not wait for it at the end.
  __host__ __device__ TileAddress address(int item) const {
    const int tile = item / parts / row_blocks;
    return {tile / tiles, tiles - 1 - tile % tiles, item / parts % row_blocks * rows};
  }

  // Token of the tile that a row belongs to. Blocks of a fixed-size tile begin at its first token.
  __host__ __device__ int token_of(const TileAddress& at, int row) const {
    if constexpr (kFixedTokens > 0) return row % kFixedTokens;
    return (at.first_row + row) % any_tokens;
  }

  // The row of Q and of the output, or -1 where the tile has none there.
  __device__ int64_t query_row(const TileAddress& at, int row) const {
    const int head = (at.first_row + row) / tokens(), token = at.tile * tokens() + token_of(at, row);
    return head < group && token < q_len ? (at.kv_head * group + head) * q_len + token : -1;
  }

  __host__ __device__ int64_t queries() const {  // of all heads and batches
    return int64_t{items} / (parts * row_blocks * tiles) * group * q_len;
  }

  // The last key that the mask lets a token of the tile see; negative if there is none.
  __host__ __device__ int last_key(const TileAddress& at, int token) const {
    return causal ? at.tile * tokens() + token + kv_len - q_len : kv_len - 1;
  }
  __host__ __device__ int last_key(const TileAddress& at) const {
    const int left = q_len - at.tile * tokens();
    return last_key(at, (left < tokens() ? left : tokens()) - 1);
  }

  // Keys before it are padding, which steps alone have.
  __device__ int first_key(const TileAddress& at) const {
    return starts != nullptr ? starts[at.kv_head / kv_heads] : 0;
  }

  // How many keys of a sequence there is room for in its pages, but are not there. What is said of keys in
  // kv_len holds for so many fewer.
  __device__ int missing(const TileAddress& at) const {
    return pages.table == nullptr ? 0 : max(0, kv_len - pages.lengths[at.kv_head / kv_heads]);
  }

  // The row of k and v that holds a head's first key, and the row of a key from there on.
  __device__ int64_t first_row(const TileAddress& at) const {
    return pages.table == nullptr ? at.kv_head * kv_len : at.kv_head % kv_heads * pages.head_rows;
  }
  __device__ uint32_t row_of(const TileAddress& at, int key) const {
    if (pages.table == nullptr) return key;
    const int32_t* const table = pages.table + at.kv_head / kv_heads * (kv_len / pages.page_size);
    const int page = max(0, min(table[key / pages.page_size], pages.pages - 1));
    return static_cast<uint32_t>(page * pages.page_rows + key % pages.page_size * pages.token_rows);
  }

  __host__ __device__ int64_t list(const TileAddress& at) const {
    int64_t head = at.kv_head;
    if (anchor_heads != nullptr) head += anchor_heads[head % kv_heads] - head % kv_heads;
    return head * tiles + at.tile;
  }
  __device__ int count(const TileAddress& at) const { return key_counts[list(at)]; }
  __device__ const int32_t* keys(const TileAddress& at) const { return key_indices + list(at) * k_keep; }

  // Number of leading entries of the list that some row of the tile sees; the list rises, so no row sees the
  // rest.
  __device__ int visible_keys(const TileAddress& at) const;

  // Whether mask_scores() must visit the scores of the `count` keys from entry `begin` of the list: some row
  // does not see some key (causal rows of a tile differ in their last tokens - 1 keys only), or signs
  // change.
  __device__ bool masks(int begin, int count, int visible) const {
    return negative_scale || begin + count > visible - (causal ? tokens() - 1 : 0);
  }
};
using Problem = ProblemOf<kTokens>;
using StepProblem = ProblemOf<0>;  // one tile of all queries of a call: its rows follow one another

// Number of entries of a rising list that are at most `limit`. All lanes of a warp call it and probe 32
// entries at a time.
__device__ inline int entries_up_to(const int32_t* list, int count, int limit) {
  const int lane = threadIdx.x % 32;
  if (count == 0 || list[count - 1] <= limit) return count;
  int low = 0, high = count;  // entries before low are at most `limit`, those from high on are not
  while (low < high) {
    const int step = (high - low + 31) / 32;
    const int probe = min(low + (lane + 1) * step, high) - 1;
    const int passed = __popc(__ballot_sync(0xffffffff, list[probe] <= limit));
    const int next = min(low + passed * step, high);
    high = min(next + step, high) - 1;
    low = next;
  }
  return low;
}

template <int kFixedTokens>
__device__ inline int ProblemOf<kFixedTokens>::visible_keys(const TileAddress& at) const {
  return entries_up_to(keys(at), count(at), last_key(at));
}

// This thread's share of a row's softmax state: the largest score, unscaled, and the sum of 2^(scale (score -
// largest)) over the thread's columns.
struct RowState {
  float largest = -INFINITY, sum = 0;

  // Raises the largest score; returns the factor for earlier sums. `shift` is subtracted from scaled scores.
  // It is rounded once and used throughout, because at huge scores its rounding error is not small.
  __device__ float raise(float score, float scale, float& shift) {
    const float before = __fmul_rn(largest, scale);
    largest = arch::larger_or_nan(largest, score);
    shift = largest == -INFINITY ? 0.0f : __fmul_rn(largest, scale);
    return exp2f(before - shift);
  }
};

using arch::quad_max;
__device__ inline float quad_max_or_nan(float x) {
  x = arch::larger_or_nan(x, __shfl_xor_sync(arch::kAllLanes, x, 1));
  return arch::larger_or_nan(x, __shfl_xor_sync(arch::kAllLanes, x, 2));
}
using arch::quad_sum;

// The factor that normalises a row: 0 for a row without keys; NaN stays NaN.
__device__ inline float inverse_or_zero(float sum) {
  return sum == 0 ? 0.0f : 1.0f / sum;
}

// Calls f with a value of the element type.
template <class F>
auto with_element(Dtype dtype, F&& f) {
  return dtype == Dtype::bf16 ? f(__nv_bfloat16{}) : f(__half{});
}

constexpr int kMostHeadDim = 256;

// Calls f with such a value and the head_dim that a kernel is compiled for, an integral_constant. kMost: no
// kernel is compiled for more.
template <int kMost = kMostHeadDim, class F>
auto with_element_and_dim(Dtype dtype, int64_t head_dim, F&& f) {
  return with_element(dtype, [&](auto element) {
    if constexpr (kMost > 128) {
      if (head_dim > 128) return f(element, std::integral_constant<int, kMostHeadDim>{});
    }
    return head_dim <= 64 ? f(element, std::integral_constant<int, 64>{})
                          : f(element, std::integral_constant<int, 128>{});
  });
}

}  // namespace splash::gpu::kascade
