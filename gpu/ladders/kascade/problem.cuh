#pragma once
// What the rungs of this ladder share: a problem as kernels see it, and where the rows and keys of a tile
// lie. A tile is 32 tokens (or another number: Selection::block) x the query heads of one key head, which
// read one rising list of keys. A thread block takes 128 (or 64, ...) of its rows: row r is token r % 32 of
// the tile and head r / 32 of the group.

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "gpu/arch/reduce.cuh"
#include "gpu/cuda_check.h"
#include "gpu/engine/trace.h"
#include "gpu/engine/variant.h"

namespace splash::gpu::kascade {

constexpr int kTokens = 32;             // tokens per tile, for kernels compiled for one size
constexpr int kHiddenKey = 0x7fffffff;  // pads the keys of a tile: larger than all

// Limits of a rung: all take shared keys, head_dims up to 128, and causal masks.
struct RungLimits {
  int compute_capability = 80;
  std::vector<Dtype> dtypes{Dtype::f16, Dtype::bf16};
  std::vector<int64_t> selection_blocks{kTokens};
};
inline Limits limits_of(const RungLimits& rung) {
  return {.dtypes = rung.dtypes,
          .head_dim_max = 128,
          .selections = {SelectionKind::shared_keys},
          .selection_blocks = rung.selection_blocks,
          .causal = true,
          .compute_capability = rung.compute_capability};
}

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
  int64_t k_keep = 0;
  int items = 0;  // row blocks of all tiles of all key heads, over all batches
  int group = 1, q_len = 1, kv_len = 1, head_dim = 8, tiles = 1;
  int rows = 128, row_blocks = 1;  // of a thread block; thread blocks a tile
  float scale = 1;                 // times log2(e), without its sign
  bool causal = false, negative_scale = false;
  int any_tokens = kFixedTokens;

  __host__ __device__ constexpr int tokens() const { return kFixedTokens > 0 ? kFixedTokens : any_tokens; }

  static ProblemOf of(const AttentionSpec& spec, int rows, const Arguments& a = {}) {
    const AttentionShape& s = spec.shape;
    ProblemOf p{
        .q = a.q, .k = a.k, .v = a.v, .out = a.out, .key_indices = a.key_indices, .key_counts = a.key_counts};
    p.k_keep = spec.selection.k_keep;
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
    const int tile = item / row_blocks;
    return {tile / tiles, tiles - 1 - tile % tiles, item % row_blocks * rows};
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

  // The last key that the mask lets a token of the tile see; negative if there is none.
  __host__ __device__ int last_key(const TileAddress& at, int token) const {
    return causal ? at.tile * tokens() + token + kv_len - q_len : kv_len - 1;
  }
  __host__ __device__ int last_key(const TileAddress& at) const {
    const int left = q_len - at.tile * tokens();
    return last_key(at, (left < tokens() ? left : tokens()) - 1);
  }

  __host__ __device__ int64_t list(const TileAddress& at) const { return at.kv_head * tiles + at.tile; }
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
using AnyTileProblem = ProblemOf<0>;

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
  return entries_up_to(keys(at), key_counts[list(at)], last_key(at));
}

// This thread's share of a row's softmax state: the largest score, unscaled, and the sum of 2^(scale (score -
// largest)) over the thread's columns.
struct RowState {
  float largest = -INFINITY, sum = 0;

  // Raises the largest score; returns the factor for earlier sums. `shift` is subtracted from scaled scores.
  // It is rounded once and used throughout, because at huge scores its rounding error is not small.
  __device__ float raise(float score, float scale, float& shift) {
    const float before = __fmul_rn(largest, scale);
    largest = fmaxf(largest, score);
    shift = largest == -INFINITY ? 0.0f : __fmul_rn(largest, scale);
    return exp2f(before - shift);
  }
};

using arch::quad_max;
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

// How a rung works through a list.
struct ListWalk {
  int tile_keys = 0, padded_dim = 0;
  // Rows that a tile lacks. False: they are not read. True: copies of the last key and of the first query are
  // read.
  bool whole_tiles = false;
  bool through_l1 = false;
  int cluster = 1;  // blocks that share one item: each reads the list, and together they read each key once
  int corrections_of_row = 4;  // per step: one by each of the four threads that hold the row
};

// Traces one item after the other.
template <class AProblem = Problem>
std::vector<KernelTrace> trace_items(const AttentionSpec& spec, Dtype dtype, const KernelLaunch& kernel,
                                     int block_rows, const ListWalk& walk) {
  const AProblem p = AProblem::of(spec, block_rows);
  const TensorRows rows(spec.shape, dtype);
  const auto run = [=, lists = spec.selection.keys.data()](int64_t item, BlockTrace& trace) {
    const TileAddress at = p.address(static_cast<int>(item));
    const int32_t* const keys = lists + p.list(at) * p.k_keep;
    const int32_t* const end = std::find(keys, keys + p.k_keep, -1);
    const auto visible = std::upper_bound(keys, end, p.last_key(at)) - keys;
    for (int i = 0; i < walk.cluster; ++i) {
      trace.read(Operand::key_lists, p.list(at) * p.k_keep * int64_t{sizeof(int32_t)},
                 visible * int64_t{sizeof(int32_t)});
    }
    const int end_row = std::min(at.first_row + p.rows, p.group * p.tokens());
    const auto for_each_head = [&](const auto& use) {  // use(head, first token, tokens)
      for (int row = at.first_row, count = 0; row < end_row; row += count) {
        const int token = row % p.tokens();
        count = std::min(p.tokens() - token, end_row - row);
        use(at.kv_head * p.group + row / p.tokens(), at.tile * p.tokens() + token, count);
      }
    };
    int present = 0;
    for_each_head([&](int64_t head, int token, int count) {
      rows.read_q(trace, head, token, count);
      present += std::clamp(p.q_len - token, 0, count);
    });
    const int64_t row_bytes = rows.row_bytes(), kv_row = at.kv_head * p.kv_len;
    if (walk.whole_tiles)
      trace.read(Operand::q, at.kv_head * p.group * p.q_len * row_bytes, row_bytes, p.rows - present);
    for (int64_t begin = 0; begin < visible; begin += walk.tile_keys) {
      const int64_t stop = std::min<int64_t>(visible, begin + walk.tile_keys);
      for (const Operand operand : {Operand::k, Operand::v}) {
        for (int64_t i = begin, run = 1; i < stop; i += run) {  // neighbours in one range
          for (run = 1; i + run < stop && keys[i + run] == keys[i] + run;) ++run;
          trace.read(operand, (kv_row + keys[i]) * row_bytes, run * row_bytes);
        }
        if (walk.whole_tiles)
          trace.read(operand, (kv_row + keys[stop - 1]) * row_bytes, row_bytes,
                     begin + walk.tile_keys - stop);
      }
      trace.multiply(p.rows, walk.tile_keys, walk.padded_dim);
      trace.multiply(p.rows, walk.padded_dim, walk.tile_keys);
      trace.exponentiate(p.rows, walk.tile_keys, walk.corrections_of_row);
      trace.next_step();
    }
    for_each_head([&](int64_t head, int token, int count) { rows.write_out(trace, head, token, count); });
  };
  return {{.kernel = kernel.name,
           .blocks = p.items,
           .cluster = walk.cluster,
           .through_l1 = walk.through_l1,
           .run = run}};
}

}  // namespace splash::gpu::kascade
