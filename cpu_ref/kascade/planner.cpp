#include "cpu_ref/kascade/planner.h"

#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "core/error.h"

namespace splash::cpu_ref {

LayerTable layer_table(std::span<const double> similarity, int64_t layers, int64_t kv_heads) {
  LayerTable table{layers, kv_heads, std::vector<double>(layers * layers),
                   std::vector<int64_t>(layers * layers * kv_heads)};
  const auto of = [&](int64_t a, int64_t a_head, int64_t b, int64_t b_head) {
    return similarity[((a * kv_heads + a_head) * layers + b) * kv_heads + b_head];
  };
  for (int64_t a = 0; a < layers; ++a) {
    for (int64_t b = a; b < layers; ++b) {
      double sum = 0;
      for (int64_t head = 0; head < kv_heads; ++head) {
        int64_t best = a == b ? head : 0;  // an anchor's heads use their own keys
        for (int64_t other = 0; other < kv_heads && a != b; ++other) {
          const double gain = of(a, other, b, head) - of(a, best, b, head);
          if (gain > 0 || (gain == 0 && other == head)) best = other;
        }
        table.best_head[(a * layers + b) * kv_heads + head] = best;
        sum += of(a, best, b, head);
      }
      table.serves[a * layers + b] = sum / static_cast<double>(kv_heads);
    }
  }
  return table;
}

void require_anchors(int64_t anchors, int64_t layers) {
  if (anchors < 1 || anchors > layers)
    throw InvalidArgument(fmt::format("anchors is {}; it must be from 1 to {}, the layers", anchors, layers));
}

std::vector<int64_t> choose_anchors(const LayerTable& table, std::span<const double> importance,
                                    int64_t anchors) {
  const int64_t layers = table.layers;
  if (static_cast<int64_t>(importance.size()) != layers) {
    throw InvalidArgument(fmt::format("importance has {} entries; there is one for each of the {} layers",
                                      importance.size(), layers));
  }
  for (const double one : importance) {
    if (!(one >= 0 && std::isfinite(one)))
      throw InvalidArgument(fmt::format("importance holds {}; it must be finite and at least 0", one));
  }
  require_anchors(anchors, layers);
  // best[m][a]: the largest sum over the layers from a on, if a is an anchor and m more follow. next[m][a]:
  // the anchor that follows there.
  const double none = -std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> best(anchors, std::vector<double>(layers + 1, none));
  std::vector<std::vector<int64_t>> next(anchors, std::vector<int64_t>(layers, layers));
  for (int64_t more = 0; more < anchors; ++more) {
    for (int64_t a = 0; a < layers; ++a) {
      double served = 0;
      for (int64_t end = a + 1; end <= layers; ++end) {  // a serves the layers of [a, end)
        served += importance[end - 1] * table.of(a, end - 1);
        const double rest = end == layers ? (more == 0 ? 0 : none) : (more == 0 ? none : best[more - 1][end]);
        if (served + rest > best[more][a]) {
          best[more][a] = served + rest;
          next[more][a] = end;
        }
      }
    }
  }
  std::vector<int64_t> chosen{0};
  for (int64_t more = anchors - 1; more > 0; --more) chosen.push_back(next[more][chosen.back()]);
  return chosen;
}

KascadePlan plan_kascade(const LayerSimilarity& similarity, std::span<const double> importance,
                         int64_t anchors, OverTiles over_tiles) {
  const LayersShape& shape = similarity.shape();
  const SimilarityOptions& options = similarity.options();
  const LayerTable table = layer_table(similarity.result(over_tiles), shape.layers, shape.kv_heads);
  KascadePlan plan{.q_heads = shape.q_heads,
                   .kv_heads = shape.kv_heads,
                   .budget = options.budget,
                   .normalizer = options.normalizer,
                   .alpha = options.alpha,
                   .over_tiles = over_tiles};
  const std::vector<int64_t> chosen = choose_anchors(table, importance, anchors);
  for (int64_t layer = 0, last = 0; layer < shape.layers; ++layer) {
    while (last + 1 < anchors && chosen[last + 1] <= layer) ++last;
    const int64_t anchor = chosen[last];
    const auto heads = table.best_head.begin() + (anchor * shape.layers + layer) * shape.kv_heads;
    plan.layers.push_back({.anchor = anchor,
                           .heads = {heads, heads + shape.kv_heads},
                           .importance = importance[layer],
                           .similarity = table.of(anchor, layer)});
  }
  plan.validate();
  return plan;
}

}  // namespace splash::cpu_ref
