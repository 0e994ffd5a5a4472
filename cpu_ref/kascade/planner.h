#pragma once
// Chooses the anchors of a Kascade plan (arXiv 2512.16391), and whose keys each head reuses.
//
// S[a][b] is how well layer a's keys serve layer b: for each key head of b the most similar key head of a,
// mean over b's heads. The anchors are those with the largest sum over layers b of importance(b) S[a][b], a
// the last anchor that is not behind b; layer 0 is the first anchor. Dynamic programming over the last
// anchors, O(layers^2 anchors).

#include <cstdint>
#include <span>
#include <vector>

#include "core/kascade_plan.h"
#include "cpu_ref/kascade/similarity.h"

namespace splash::cpu_ref {

// What plan_kascade weighs.
struct LayerTable {
  int64_t layers = 0, kv_heads = 0;
  std::vector<double> serves;      // [layers, layers]: S[a][b], 0 where a > b
  std::vector<int64_t> best_head;  // [layers, layers, kv_heads]: a's head for each head of b; of equals the
                                   // head of the same number, else the lowest
  double of(int64_t a, int64_t b) const { return serves[a * layers + b]; }
};

// similarity: [layers, kv_heads, layers, kv_heads], as LayerSimilarity::result() gives it.
LayerTable layer_table(std::span<const double> similarity, int64_t layers, int64_t kv_heads);

void require_anchors(int64_t anchors,
                     int64_t layers);  // throws InvalidArgument unless 1 <= anchors <= layers

// The anchors, rising, 0 first. importance: [layers], finite, at least 0. Among equal sums the earliest
// second anchor wins, then the earliest third, and so on. Throws InvalidArgument.
std::vector<int64_t> choose_anchors(const LayerTable& table, std::span<const double> importance,
                                    int64_t anchors);

// The whole plan; model and made_by are left empty. Throws InvalidArgument.
KascadePlan plan_kascade(const LayerSimilarity& similarity, std::span<const double> importance,
                         int64_t anchors, OverTiles over_tiles = OverTiles::mean);

}  // namespace splash::cpu_ref
