#include "gpu/engine/work.h"

#include <algorithm>
#include <limits>

#include "gpu/engine/round.h"

namespace splash::gpu {
namespace {

// Pairs of tiles with a visible pair, of one head. Exact for every mask but positions beside another part,
// where it may count a pair of tiles that each part leaves open to some row, but no row to all.
int64_t visible_tiles_of_head(const AttentionSpec& spec, const Tile& tile, int64_t batch, int64_t head) {
  const AttentionShape& shape = spec.shape;
  std::vector<int64_t> smallest;  // k_position of each key tile
  int64_t tiles = 0;
  for (int64_t q = 0; q < shape.q_len; q += tile.q) {
    int64_t begin = shape.kv_len, end = 0, q_position = std::numeric_limits<int64_t>::min();
    const int64_t* k_positions = nullptr;
    for (int64_t i = q; i < std::min(q + tile.q, shape.q_len); ++i) {
      const RowMask row = spec.mask.row(shape, batch, head, i);
      if (row.begin >= row.end) continue;
      begin = std::min(begin, row.begin);
      end = std::max(end, row.end);
      q_position = std::max(q_position, row.q_position);
      k_positions = row.k_positions;
    }
    if (begin >= end) continue;
    if (k_positions != nullptr && smallest.empty()) {
      for (int64_t k = 0; k < shape.kv_len; k += tile.k)
        smallest.push_back(
            *std::min_element(k_positions + k, k_positions + std::min(k + tile.k, shape.kv_len)));
    }
    for (int64_t t = begin / tile.k; t < ceil_div(end, tile.k); ++t)
      tiles += k_positions == nullptr || smallest[t] <= q_position ? 1 : 0;
  }
  return tiles;
}

int64_t visible_tiles(const AttentionSpec& spec, const Tile& tile) {
  const AttentionShape& shape = spec.shape;
  if (spec.mask.same_for_all_heads(shape))
    return shape.batch * shape.q_heads * visible_tiles_of_head(spec, tile, 0, 0);
  int64_t tiles = 0;
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t h = 0; h < shape.q_heads; ++h) tiles += visible_tiles_of_head(spec, tile, b, h);
  }
  return tiles;
}

struct SharedPairs {
  double useful = 0;  // listed and visible (query, key) pairs
  double tiles = 0;   // key tiles of all lists, each multiplied with a whole tile of queries
};

// The keys of a list rise, so those a query sees are found by bisection where the mask is causal or none.
SharedPairs shared_pairs(const AttentionSpec& spec, const Tile& tile) {
  const AttentionShape& shape = spec.shape;
  const Selection& selection = spec.selection;
  SharedPairs pairs;
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
      for (int64_t q = 0; q < shape.q_len; q += selection.block) {
        const int64_t head = kv_head * shape.group();
        const int32_t* const keys = selection.keys_of(shape, b, head, q);
        const int32_t* const end = std::find(keys, keys + selection.k_keep, -1);
        pairs.tiles += static_cast<double>(ceil_div(end - keys, tile.k));
        for (int64_t i = q; i < std::min(q + selection.block, shape.q_len); ++i) {
          const RowMask row = spec.mask.row(shape, b, head, i);
          const auto seen = std::lower_bound(keys, end, row.end) - std::lower_bound(keys, end, row.begin);
          pairs.useful += static_cast<double>(shape.group() * std::max<int64_t>(0, seen));
        }
      }
    }
  }
  return pairs;
}

}  // namespace

double compulsory_bytes(const AttentionShape& shape, Dtype dtype) {
  const auto q_and_out = static_cast<double>(2 * shape.rows() * shape.head_dim);
  const auto k_and_v = static_cast<double>(2 * shape.batch * shape.kv_heads * shape.kv_len * shape.head_dim);
  return (q_and_out + k_and_v) * static_cast<double>(bytes_of(dtype));
}

Work tiled_work(const AttentionSpec& spec, Dtype dtype, const Tile& tile, int64_t padded_dim, MathUnit unit) {
  const AttentionShape& shape = spec.shape;
  const auto dim = static_cast<double>(shape.head_dim), padded = static_cast<double>(padded_dim);
  const auto element = static_cast<double>(bytes_of(dtype));
  double useful_pairs = 0, tiles = 0;
  if (spec.selection.kind == SelectionKind::shared_keys) {
    const SharedPairs pairs = shared_pairs(spec, tile);
    useful_pairs = pairs.useful;
    tiles = pairs.tiles;
  } else {
    useful_pairs = static_cast<double>(visible_pairs(shape, spec.mask));
    tiles = static_cast<double>(visible_tiles(spec, tile));
  }
  Work work;
  work.unit = unit;
  work.useful_flops = 4 * dim * useful_pairs;
  work.executed_flops = 4 * padded * tiles * tile.q * tile.k;
  work.dram_bytes = compulsory_bytes(shape, dtype);
  work.l2_bytes = element * dim * (2 * static_cast<double>(shape.rows()) + 2 * tiles * tile.k);
  return work;
}

}  // namespace splash::gpu
