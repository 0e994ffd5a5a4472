#pragma once
// How well the keys that one layer of a model finds serve another layer, as Kascade asks it (arXiv
// 2512.16391). For a tile of queries and a key head, the probabilities of the tile's rows (its queries x the
// query heads of the key head) are summed key by key. The tile's own keys and then the keys with the largest
// sums, as many as the budget allows, are the set of the tile. The similarity of a head of layer a to a head
// of layer b is the share of b's probabilities that falls on a's sets.
//
//   LayerSimilarity similarity({.layers = 30, .q_heads = 9, .kv_heads = 3}, options);
//   for (int64_t layer = 0; layer < 30; ++layer) similarity.add_layer(q[layer], k[layer], scale);
//   ... the same for other texts ...
//   const KascadePlan plan = plan_kascade(similarity, importance, 5);     // kascade/planner.h
//
// Layers arrive one at a time, so that nobody holds q and k of a whole model: of earlier layers only the sets
// are kept, 4 bytes per key of a set. Causal; in double; O(length^2 head_dim) time per query head.

#include <cstdint>
#include <vector>

#include "core/kascade_plan.h"
#include "core/tensor.h"

namespace splash::cpu_ref {

struct LayersShape {
  int64_t layers = 1, q_heads = 1, kv_heads = 1;
};

struct SimilarityOptions {
  KascadeBudget budget{};
  NormalizerKind normalizer = NormalizerKind::softmax;  // softmax or entmax
  double alpha = 1.5;                                   // of entmax
  int64_t tiles = 0;  // tiles of a text that are looked at, evenly spread with the last; 0: all
};

// The set of a tile: its own keys, those from `own_begin` on, and of the others those with the largest sums,
// `count` keys in all, rising. Among equal sums the lower key wins. pooled: [visible keys], no NaN;
// visible - own_begin <= count <= visible.
std::vector<int32_t> tile_set(const std::vector<double>& pooled, int64_t own_begin, int64_t count);

class LayerSimilarity {
 public:
  LayerSimilarity(const LayersShape& shape, const SimilarityOptions& options);  // throws InvalidArgument

  // The next layer of a text; layer 0 opens the next text. q: [batch, q_heads, length, head_dim], k: [batch,
  // kv_heads, length, head_dim], after rotation. Each batch entry is a text, of the same length in all
  // layers. Scores are scale <q, k>. Throws InvalidArgument, also for values that are not finite.
  void add_layer(TensorView<const float> q, TensorView<const float> k, double scale);

  const LayersShape& shape() const { return shape_; }
  const SimilarityOptions& options() const { return options_; }
  int64_t texts() const { return texts_; }  // that are whole
  // [layers, kv_heads, layers, kv_heads]: of layer a's head to layer b's head, 0 where a > b. A text counts
  // by the mean or the minimum of its tiles, and texts by their mean. Throws InvalidArgument before a text is
  // whole.
  std::vector<double> result(OverTiles over_tiles) const;
  size_t index(int64_t a, int64_t a_head, int64_t b, int64_t b_head) const {
    return ((a * shape_.kv_heads + a_head) * shape_.layers + b) * shape_.kv_heads + b_head;
  }

 private:
  struct Unit;  // one tile of one text

  void check(const TensorView<const float>& q, const TensorView<const float>& k, double scale) const;
  void open_text(int64_t batch, int64_t length);
  std::vector<double> pool(const Unit& unit, TensorView<const float> q, const RowMajorMatrix<double>& keys,
                           int64_t kv_head, double scale) const;

  LayersShape shape_;
  SimilarityOptions options_;
  int64_t layer_ = 0, texts_ = 0;           // the next layer; texts that are whole
  int64_t batch_ = 0, length_ = 0;          // of the text that is open
  std::vector<int64_t> tiles_;              // that are looked at
  std::vector<std::vector<int32_t>> sets_;  // [layer, kv_head, batch, tile]
  std::vector<double> mean_, minimum_;      // sums over texts, in the order of index()
};

}  // namespace splash::cpu_ref
