#pragma once
// The ladder's problem, which kernels take by value: exact alpha-entmax over the k_keep largest scores of
// each key block. Compiles without nvcc.

#include <algorithm>
#include <cstdint>
#include <string>

#include "core/error.h"
#include "core/round.h"
#include "gpu/engine/trace.h"
#include "gpu/engine/variant.h"

namespace splash::gpu::sparse {

constexpr int kMaxAlphas = 256;

struct Problem {
  const float *q, *k, *v;  // [batch, heads, length, head_dim]
  float* out;
  const int32_t *q_positions, *k_positions;  // null without a mask by positions
  int heads;                                 // batch * q_heads; query head h reads key head h / group
  int q_heads, group, q_len, kv_len, head_dim;
  int reach;  // query i sees only keys below i + reach
  int block, k_keep;
  float scale;
  bool normalized;  // of the power normalizers
  int alphas;       // 1, or q_heads
  float alpha[kMaxAlphas];
};

// Throws Unsupported where each of more than kMaxAlphas query heads has its own alpha.
inline Problem make_problem(const AttentionSpec& spec, const Arguments& arguments = {}) {
  const AttentionShape& shape = spec.shape;
  const std::vector<double>& alpha = spec.normalizer.alpha;
  if (alpha.size() > kMaxAlphas) {
    throw Unsupported("the splash ladder takes one alpha for all heads or at most " +
                      std::to_string(kMaxAlphas) + ", not " + std::to_string(alpha.size()));
  }
  Problem p{};
  p.q = static_cast<const float*>(arguments.q);
  p.k = static_cast<const float*>(arguments.k);
  p.v = static_cast<const float*>(arguments.v);
  p.out = static_cast<float*>(arguments.out);
  p.q_positions = arguments.q_positions;
  p.k_positions = arguments.k_positions;
  p.heads = static_cast<int>(shape.batch * shape.q_heads);
  p.q_heads = static_cast<int>(shape.q_heads);
  p.group = static_cast<int>(shape.group());
  p.q_len = static_cast<int>(shape.q_len);
  p.kv_len = static_cast<int>(shape.kv_len);
  p.head_dim = static_cast<int>(shape.head_dim);
  p.reach = static_cast<int>(spec.mask.causal ? shape.kv_len - shape.q_len + 1 : shape.kv_len);
  p.block = static_cast<int>(spec.selection.block);
  p.k_keep = static_cast<int>(std::min(spec.selection.k_keep, spec.selection.block));
  p.scale = static_cast<float>(spec.score_scale());
  p.normalized = spec.normalizer.kind != NormalizerKind::power_unnormalized;
  p.alphas = static_cast<int>(alpha.size());
  std::copy(alpha.begin(), alpha.end(), p.alpha);
  return p;
}

// What the fp32 rungs take.
inline Limits fp32_limits(NormalizerKind kind, std::vector<int64_t> selection_blocks) {
  Limits limits;
  limits.dtypes = {Dtype::f32};
  limits.head_dim_max = 128;
  limits.normalizers = {kind};
  if (kind == NormalizerKind::power) limits.normalizers.push_back(NormalizerKind::power_unnormalized);
  limits.selections = {SelectionKind::top_k_block};
  limits.selection_blocks = std::move(selection_blocks);
  limits.causal = limits.positions = true;
  return limits;
}

// The queries of a block. The first blocks take the last queries of every head, later blocks earlier ones.
struct QueryTile {
  int64_t head = 0, kv_head = 0, first = 0;
};
inline QueryTile query_tile(const Problem& p, int64_t block, int64_t tile_q) {
  const int64_t head = block % p.heads;
  return {head, head / p.group, (ceil_div(p.q_len, tile_q) - 1 - block / p.heads) * tile_q};
}

// Traces `passes` passes over the key tiles that some query of the block sees; read_keys(key_tile) traces the
// reads of one tile. Returns whether there are any such tiles.
template <class ReadKeys>
bool trace_scores(BlockTrace& trace, SeenTiles& seen, const QueryTile& queries, const Tile& tile,
                  int64_t padded_dim, int passes, const ReadKeys& read_keys) {
  const std::vector<int64_t>& key_tiles = seen.of(queries.head, queries.first);
  for (int pass = 0; pass < passes; ++pass) {
    for (const int64_t key_tile : key_tiles) {
      read_keys(key_tile);
      trace.multiply(tile.q, tile.k, padded_dim);
      trace.next_step();
    }
  }
  return !key_tiles.empty();
}

}  // namespace splash::gpu::sparse
