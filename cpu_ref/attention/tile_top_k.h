#pragma once
// The keys that a tile of queries shares, chosen as in Kascade's anchor layers (arXiv 2512.16391). The
// softmax probabilities of the tile's rows (its queries x the query heads of a key head) are summed key by
// key, and the k largest sums win. Its sums are the oracle of gpu/kascade/kascade.h: double, dense,
// O(length^2) time.

#include <vector>

#include "core/attention_spec.h"
#include "core/tensor.h"

namespace splash::cpu_ref {

struct TileTopKOptions {
  int64_t tile = 32;   // queries per tile
  double share = 0.1;  // share of the keys that the tile's last query sees, rounded up: 0 < share <= 1
  int64_t k = 0;       // keys to keep, at most all that this query sees; 0: use the share
};

struct TileTopK {
  Selection selection;         // shared_keys; its k_keep is the longest list's length, at least 1
  std::vector<double> pooled;  // [batch, kv_heads, tiles, kv_len]: the sums; 0 for keys that no row sees
};

// Ignores spec.selection; the normalizer must be softmax. Among equal sums the lower key wins. A NaN row
// makes the sums of its tile NaN, which count as largest. If too few keys have a probability, the first other
// keys fill the list. Throws InvalidArgument.
TileTopK tile_top_k(const AttentionSpec& spec, TensorView<const double> q, TensorView<const double> k,
                    const TileTopKOptions& options = {});

}  // namespace splash::cpu_ref
