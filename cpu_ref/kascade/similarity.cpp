#include "cpu_ref/kascade/similarity.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include <fmt/format.h>

#include "core/error.h"
#include "core/parallel.h"
#include "core/round.h"
#include "cpu_ref/entmax/solver.h"
#include "cpu_ref/normalize/softmax.h"

namespace splash::cpu_ref {

struct LayerSimilarity::Unit {
  int64_t batch, begin, end;  // queries [begin, end)
};

std::vector<int32_t> tile_set(const std::vector<double>& pooled, int64_t own_begin, int64_t count) {
  std::vector<int32_t> keys(pooled.size());
  std::iota(keys.begin(), keys.end(), 0);
  // Own keys first, then by falling sums, then by rising keys.
  const auto before = [&](int32_t a, int32_t b) {
    const bool a_own = a >= own_begin, b_own = b >= own_begin;
    if (a_own != b_own) return a_own;
    return pooled[a] != pooled[b] ? pooled[a] > pooled[b] : a < b;
  };
  std::nth_element(keys.begin(), keys.begin() + std::max<int64_t>(0, count - 1), keys.end(), before);
  keys.resize(count);
  std::sort(keys.begin(), keys.end());
  return keys;
}

LayerSimilarity::LayerSimilarity(const LayersShape& shape, const SimilarityOptions& options)
    : shape_(shape), options_(options) {
  KascadePlan all_anchors{.q_heads = shape.q_heads,
                          .kv_heads = shape.kv_heads,
                          .budget = options.budget,
                          .normalizer = options.normalizer,
                          .alpha = options.alpha};
  if (shape.layers < 1 || shape.layers > kMostLayers) {
    throw InvalidArgument(
        fmt::format("there are {} layers; there must be from 1 to {}", shape.layers, kMostLayers));
  }
  all_anchors.layers = {
      {.anchor = 0, .heads = std::vector<int64_t>(std::clamp<int64_t>(shape.kv_heads, 0, kMostHeads))}};
  std::iota(all_anchors.layers[0].heads.begin(), all_anchors.layers[0].heads.end(), 0);
  all_anchors.validate();
  if (options.tiles < 0)
    throw InvalidArgument(fmt::format("tiles is {}; it must be at least 1, or 0 for all", options.tiles));
  const auto pairs = static_cast<size_t>(shape.layers * shape.kv_heads) * (shape.layers * shape.kv_heads);
  mean_.resize(pairs);
  minimum_.resize(pairs);
}

void LayerSimilarity::check(const TensorView<const float>& q, const TensorView<const float>& k,
                            double scale) const {
  const AttentionShape call{q.batch, q.heads, k.heads, q.length, k.length, q.dim};
  call.validate();
  require_extents("q", q, q.batch, shape_.q_heads, q.length, q.dim);
  require_extents("k", k, q.batch, shape_.kv_heads, q.length, q.dim);
  if (layer_ > 0 && (q.batch != batch_ || q.length != length_)) {
    throw InvalidArgument(
        fmt::format("layer {} has {} texts of {} tokens, and layer 0 of the same call {} of {}", layer_,
                    q.batch, q.length, batch_, length_));
  }
  const auto finite = [](const TensorView<const float>& t) {
    return std::all_of(t.data, t.data + t.size(), [](float value) { return std::isfinite(value); });
  };
  if (!finite(q) || !finite(k) || !std::isfinite(scale))
    throw InvalidArgument(fmt::format("q, k or the scale of layer {} is not finite", layer_));
}

void LayerSimilarity::open_text(int64_t batch, int64_t length) {
  batch_ = batch;
  length_ = length;
  const int64_t all = ceil_div(length, options_.budget.tile);
  const int64_t taken = options_.tiles == 0 ? all : std::min(all, options_.tiles);
  tiles_.resize(taken);
  for (int64_t t = 0; t < taken; ++t) tiles_[t] = (t + 1) * all / taken - 1;
  sets_.assign(static_cast<size_t>(shape_.layers * shape_.kv_heads * batch * taken), {});
}

// The sums of the tile's probabilities, key by key: [unit.end].
std::vector<double> LayerSimilarity::pool(const Unit& unit, TensorView<const float> q,
                                          const RowMajorMatrix<double>& keys, int64_t kv_head,
                                          double scale) const {
  const int64_t group = shape_.q_heads / shape_.kv_heads, rows = unit.end - unit.begin;
  std::vector<double> pooled(unit.end), p(unit.end);
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    const RowMajorMatrix<double> queries =
        q.matrix(unit.batch, head).middleRows(unit.begin, rows).cast<double>();
    RowMajorMatrix<double> scores = queries * keys.topRows(unit.end).transpose();
    scores *= scale;
    for (int64_t i = 0; i < rows; ++i) {
      const auto visible = static_cast<size_t>(unit.begin + i + 1);
      const std::span<const double> row(scores.row(i).data(), visible);
      const std::span<double> out(p.data(), visible);
      if (options_.normalizer == NormalizerKind::softmax) {
        softmax_row<double>(row, out);
      } else {
        entmax_row<double>(Solver::halley_bisection, row, options_.alpha, out);
      }
      for (size_t j = 0; j < visible; ++j) pooled[j] += p[j];
    }
  }
  return pooled;
}

void LayerSimilarity::add_layer(TensorView<const float> q, TensorView<const float> k, double scale) {
  check(q, k, scale);
  if (layer_ == 0) open_text(q.batch, q.length);
  const int64_t heads = shape_.kv_heads, taken = static_cast<int64_t>(tiles_.size());
  const int64_t units = batch_ * taken, others = (layer_ + 1) * heads;
  std::vector<RowMajorMatrix<double>> keys;  // [batch, kv_heads]
  for (int64_t at = 0; at < batch_ * heads; ++at)
    keys.emplace_back(k.matrix(at / heads, at % heads).cast<double>());
  const auto set_of = [&](int64_t layer_and_head, int64_t unit) -> std::vector<int32_t>& {
    return sets_[layer_and_head * units + unit];
  };
  std::vector<double> shares(units * others * heads);  // [unit, head of a layer so far, head of this layer]
  parallel_for(units, 1, [&](int64_t at) {
    const int64_t begin = tiles_[at % taken] * options_.budget.tile;
    const Unit unit{at / taken, begin, std::min(begin + options_.budget.tile, length_)};
    const int64_t own = unit.end - unit.begin;
    std::vector<std::vector<double>> pooled;
    for (int64_t head = 0; head < heads; ++head) {
      pooled.push_back(pool(unit, q, keys[unit.batch * heads + head], head, scale));
      set_of(layer_ * heads + head, at) =
          tile_set(pooled.back(), unit.begin, options_.budget.keys(unit.end, own));
    }
    const int64_t group = shape_.q_heads / heads;
    const auto rows = static_cast<double>(own * group);
    for (int64_t other = 0; other < others; ++other) {
      for (int64_t head = 0; head < heads; ++head) {
        double sum = 0;
        for (const int32_t key : set_of(other, at)) sum += pooled[head][key];
        shares[(at * others + other) * heads + head] = sum / rows;
      }
    }
  });
  for (int64_t other = 0; other < others; ++other) {
    for (int64_t head = 0; head < heads; ++head) {
      const size_t to = index(other / heads, other % heads, layer_, head);
      for (int64_t batch = 0; batch < batch_; ++batch) {
        double sum = 0, least = 1;
        for (int64_t t = 0; t < taken; ++t) {
          const double share = shares[((batch * taken + t) * others + other) * heads + head];
          sum += share;
          least = std::min(least, share);
        }
        mean_[to] += sum / static_cast<double>(taken);
        minimum_[to] += least;
      }
    }
  }
  if (++layer_ < shape_.layers) return;
  layer_ = 0;
  texts_ += batch_;
  sets_.clear();
}

std::vector<double> LayerSimilarity::result(OverTiles over_tiles) const {
  if (texts_ == 0 || layer_ != 0) {
    throw InvalidArgument(
        layer_ == 0 ? "no text was given; give q and k of every layer of one"
                    : fmt::format("of a text only {} of {} layers were given", layer_, shape_.layers));
  }
  std::vector<double> result = over_tiles == OverTiles::mean ? mean_ : minimum_;
  for (double& value : result) value /= static_cast<double>(texts_);
  return result;
}

}  // namespace splash::cpu_ref
