#pragma once
// The keys a tile of queries shares, as Kascade's anchor layers choose them (arXiv 2512.16391): the softmax
// probabilities of the tile's rows (its queries x the query heads of a key head) are summed key by key, and
// the k largest sums win. The oracle of gpu/ladders/kascade/anchor.h: double, dense, O(length^2) time.

#include <vector>

#include "core/attention_spec.h"
#include "core/tensor.h"

namespace splash::cpu_ref {

struct TileTopKOptions {
  int64_t tile = 32;   // queries
  double share = 0.1;  // keys kept of those that the tile's last query sees, rounded up: 0 < share <= 1
  int64_t k = 0;       // or so many, as far as that query sees as many; 0: by the share
};

struct TileTopK {
  Selection selection;         // shared_keys; its k_keep is the longest list's length, at least 1
  std::vector<double> pooled;  // [batch, kv_heads, tiles, kv_len]: the sums; 0 for keys that no row sees
};

// spec.selection is not looked at; the normalizer must be softmax. Of equal sums the lower key wins; a NaN
// row makes the sums of its tile NaN, which count as largest. Of keys without probability the first fill a
// list up. Throws InvalidArgument.
TileTopK tile_top_k(const AttentionSpec& spec, TensorView<const double> q, TensorView<const double> k,
                    const TileTopKOptions& options = {});

}  // namespace splash::cpu_ref
