// The planner of Kascade: sets against a plain sort, similarities against the naive attention, anchors
// against all choices, and a model made of layers whose heads are permuted.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include <doctest/doctest.h>

#include "core/error.h"
#include "core/random.h"
#include "cpu_ref/attention/naive.h"
#include "cpu_ref/attention/tile_top_k.h"
#include "cpu_ref/kascade/planner.h"
#include "cpu_ref/kascade/similarity.h"
#include "cpu_ref/tests/attention_test_support.h"

using namespace splash;
using namespace splash::cpu_ref;
using namespace splash::cpu_ref::test;

namespace {

struct Layer {
  Tensor<float> q, k;
};

// With step 1 of whole numbers: scores are exact and many sums tie.
Layer random_layer(const LayersShape& shape, int64_t batch, int64_t length, int64_t dim, uint64_t seed,
                   double step = 0) {
  auto inputs = random_inputs<float>({batch, shape.q_heads, shape.kv_heads, length, length, dim}, seed, step);
  return {std::move(inputs.q), std::move(inputs.k)};
}

// Numbers drawn one after another.
class Draws {
 public:
  explicit Draws(uint64_t seed) : random_(seed) {}
  int64_t below(int64_t most) {
    return static_cast<int64_t>(random_.bits(next_++) % static_cast<uint64_t>(most));
  }
  double uniform() { return random_.uniform(next_++); }

 private:
  CounterRandom random_;
  uint64_t next_ = 0;
};

// A layer whose key heads, with their query heads, are the other's: head h is its head from[h].
Layer permuted(const Layer& layer, const std::vector<int64_t>& from) {
  Layer result = layer;
  const int64_t group = layer.q.heads() / layer.k.heads();
  for (int64_t b = 0; b < layer.q.batch(); ++b) {
    for (int64_t head = 0; head < layer.k.heads(); ++head) {
      result.k.matrix(b, head) = layer.k.matrix(b, from[head]);
      for (int64_t i = 0; i < group; ++i)
        result.q.matrix(b, head * group + i) = layer.q.matrix(b, from[head] * group + i);
    }
  }
  return result;
}

// What the header says, by a stable sort.
std::vector<int32_t> plain_set(const std::vector<double>& pooled, int64_t own_begin, int64_t count) {
  std::vector<int32_t> keys(pooled.size());
  std::iota(keys.begin(), keys.end(), 0);
  std::stable_sort(keys.begin(), keys.end(), [&](int32_t a, int32_t b) { return pooled[a] > pooled[b]; });
  std::stable_partition(keys.begin(), keys.end(), [&](int32_t key) { return key >= own_begin; });
  keys.resize(count);
  std::sort(keys.begin(), keys.end());
  return keys;
}

double value_of(const LayerTable& table, std::span<const double> importance,
                const std::vector<int64_t>& anchors) {
  double sum = 0;
  for (int64_t b = 0; b < table.layers; ++b) {
    const int64_t anchor = *std::prev(std::upper_bound(anchors.begin(), anchors.end(), b));
    sum += importance[b] * table.of(anchor, b);
  }
  return sum;
}

}  // namespace

TEST_CASE("a tile's set is its own keys and the largest sums, the lower key among equals") {
  Draws draws(3);
  for (int trial = 0; trial < 200; ++trial) {
    const int64_t visible = 1 + draws.below(40);
    const int64_t own = 1 + draws.below(std::min<int64_t>(visible, 6));
    const int64_t count = own + draws.below(visible - own + 1);
    std::vector<double> pooled(visible);
    for (double& sum : pooled) sum = static_cast<double>(draws.below(4));  // ties
    CHECK(tile_set(pooled, visible - own, count) == plain_set(pooled, visible - own, count));
  }
}

TEST_CASE("similarity is the share of a layer's probabilities on another's sets") {
  const LayersShape shape{.layers = 3, .q_heads = 4, .kv_heads = 2};
  const int64_t length = 37, dim = 4, batch = 2;
  for (const auto normalizer : {NormalizerKind::softmax, NormalizerKind::entmax}) {
    const SimilarityOptions options{
        .budget = {.tile = 8, .share = 0.3, .least_keys = 3}, .normalizer = normalizer, .alpha = 1.5};
    LayerSimilarity similarity(shape, options);
    std::vector<std::vector<double>> pooled;  // [layer, head, batch, tile]
    const int64_t tiles = 5;
    for (int64_t layer = 0; layer < 3; ++layer) {
      const Layer made = random_layer(shape, batch, length, dim, 70 + layer, 1);
      similarity.add_layer(made.q, made.k, 0.5);
      const AttentionSpec spec{
          {batch, 4, 2, length, length, dim}, 0.5, {normalizer, {1.5}}, {}, {.causal = true}};
      AttentionInputs<double> inputs{made.q.cast<double>(), made.k.cast<double>(), made.k.cast<double>()};
      const auto p = naive_forward(spec, inputs).probabilities;
      for (int64_t at = 0; at < 2 * batch * tiles; ++at) {
        const int64_t head = at / (batch * tiles), b = at / tiles % batch, begin = at % tiles * 8;
        const int64_t end = std::min<int64_t>(begin + 8, length);
        std::vector<double> sums(end);
        for (int64_t h = 2 * head; h < 2 * head + 2; ++h) {
          for (int64_t i = begin; i < end; ++i) {
            for (int64_t j = 0; j < end; ++j) sums[j] += p.row(b, h, i)[j];
          }
        }
        pooled.push_back(sums);
      }
    }
    for (const auto over : {OverTiles::mean, OverTiles::minimum}) {
      const std::vector<double> found = similarity.result(over);
      CHECK(similarity.texts() == 2);
      for (int64_t a = 0; a < 6; ++a) {    // a layer and its head
        for (int64_t b = 0; b < 6; ++b) {  // another
          double wanted = 0;
          for (int64_t text = 0; text < batch && a / 2 <= b / 2; ++text) {
            double sum = 0, least = 1;
            for (int64_t tile = 0; tile < tiles; ++tile) {
              const auto& of_a = pooled[(a * batch + text) * tiles + tile];
              const auto& of_b = pooled[(b * batch + text) * tiles + tile];
              const auto visible = static_cast<int64_t>(of_a.size());
              double share = 0;
              for (const int32_t key :
                   plain_set(of_a, tile * 8, options.budget.keys(visible, visible - tile * 8)))
                share += of_b[key];
              share /= static_cast<double>(2 * (visible - tile * 8));
              sum += share;
              least = std::min(least, share);
            }
            wanted += (over == OverTiles::mean ? sum / tiles : least) / batch;
          }
          CHECK(found[similarity.index(a / 2, a % 2, b / 2, b % 2)] == doctest::Approx(wanted).epsilon(1e-9));
        }
      }
    }
  }
}

TEST_CASE("tiles that are looked at are spread evenly, with the last") {
  const LayersShape shape{.layers = 1, .q_heads = 1, .kv_heads = 1};
  const Layer made = random_layer(shape, 1, 40, 4, 5);
  const auto least = [&](int64_t tiles) {
    LayerSimilarity similarity(shape, {.budget = {.tile = 4, .share = 0.2, .least_keys = 1}, .tiles = tiles});
    similarity.add_layer(made.q, made.k, 2.0);
    return similarity.result(OverTiles::minimum)[0];
  };
  CHECK(least(0) == least(10));
  CHECK(least(10) == least(99));
  LayerSimilarity last(shape, {.budget = {.tile = 4, .share = 0.2, .least_keys = 1}, .tiles = 1});
  last.add_layer(made.q, made.k, 2.0);
  CHECK(last.result(OverTiles::mean) == last.result(OverTiles::minimum));  // one tile
  const AttentionSpec spec{{1, 1, 1, 40, 40, 4}, 2.0, {NormalizerKind::softmax, {1.5}}, {}, {.causal = true}};
  const auto chosen = tile_top_k(spec, made.q.cast<double>(), made.k.cast<double>(), {.tile = 4});
  std::vector<double> sums(chosen.pooled.end() - 40, chosen.pooled.end());
  double wanted = 0;
  for (const int32_t key : plain_set(sums, 36, 8)) wanted += sums[key] / 4;
  CHECK(last.result(OverTiles::mean)[0] == doctest::Approx(wanted));
}

TEST_CASE("anchors are the best of all choices") {
  Draws draws(11);
  for (int trial = 0; trial < 60; ++trial) {
    const int64_t layers = 2 + draws.below(7), heads = 1 + draws.below(3);
    std::vector<double> similarity(layers * heads * layers * heads), importance(layers);
    for (double& one : similarity) one = draws.uniform();
    for (double& one : importance) one = draws.uniform();
    const LayerTable table = layer_table(similarity, layers, heads);
    for (int64_t anchors = 1; anchors <= layers; ++anchors) {
      double best = -1;
      std::vector<int64_t> wanted;
      for (int64_t bits = 0; bits < int64_t{1} << (layers - 1); ++bits) {
        std::vector<int64_t> tried{0};
        for (int64_t layer = 1; layer < layers; ++layer) {
          if ((bits >> (layer - 1)) & 1) tried.push_back(layer);
        }
        if (static_cast<int64_t>(tried.size()) != anchors) continue;
        if (const double value = value_of(table, importance, tried); value > best) {
          best = value;
          wanted = tried;
        }
      }
      CHECK(choose_anchors(table, importance, anchors) == wanted);
    }
  }
}

TEST_CASE("a layer's table takes the best head of another layer, and of equals its own number") {
  // Two layers of two heads: [a, a_head, b, b_head].
  const std::vector<double> similarity{1, 0.2, 0.5, 0.5, 0.9, 1, 0.6, 0.5, 0, 0, 1, 0, 0, 0, 0.3, 1};
  const LayerTable table = layer_table(similarity, 2, 2);
  CHECK(table.of(0, 1) == doctest::Approx((0.6 + 0.5) / 2));
  CHECK(table.of(0, 0) == 1.0);  // an anchor's heads use their own keys
  const std::vector<int64_t> heads(table.best_head.begin() + 2, table.best_head.begin() + 4);
  CHECK(heads == std::vector<int64_t>{1, 1});
}

TEST_CASE("planted layers are found: anchors, and the permutation of heads") {
  const LayersShape shape{.layers = 9, .q_heads = 8, .kv_heads = 4};
  const std::vector<int64_t> planted{0, 2, 3, 7};
  const std::vector<std::vector<int64_t>> maps{{0, 1, 2, 3}, {2, 0, 3, 1}, {0, 1, 2, 3},
                                               {0, 1, 2, 3}, {3, 2, 1, 0}, {1, 1, 0, 2},
                                               {0, 3, 2, 1}, {0, 1, 2, 3}, {1, 2, 3, 0}};
  LayerSimilarity similarity(shape, {.budget = {.tile = 8, .share = 0.15, .least_keys = 12}});
  std::vector<double> importance(9);
  for (uint64_t text = 0; text < 2; ++text) {
    Layer base;
    for (int64_t layer = 0; layer < 9; ++layer) {
      if (std::ranges::find(planted, layer) != planted.end())
        base = random_layer(shape, 1, 160, 8, 100 * text + layer);
      const Layer made = permuted(base, maps[layer]);
      similarity.add_layer(made.q, made.k, 2.0);
      importance[layer] = 0.5 + 0.05 * static_cast<double>(layer);
    }
  }
  for (const auto over : {OverTiles::mean, OverTiles::minimum}) {
    const KascadePlan plan = plan_kascade(similarity, importance, 4, over);
    CHECK(plan.anchors() == planted);
    for (int64_t layer = 0; layer < 9; ++layer) CHECK(plan.layers[layer].heads == maps[layer]);
    CHECK(plan.layers[5].importance == 0.75);
    CHECK(plan.layers[1].similarity == doctest::Approx(plan.layers[0].similarity));
    CHECK(parse_kascade_plan(to_toml(plan), "plan.toml") == plan);
  }
  CHECK(plan_kascade(similarity, importance, 9).anchors().size() == 9);
  CHECK(plan_kascade(similarity, importance, 1).anchors().size() == 1);
}

TEST_CASE("what the planner does not take is told") {
  const LayersShape shape{.layers = 2, .q_heads = 2, .kv_heads = 1};
  CHECK_THROWS_WITH_AS(LayerSimilarity({.layers = 0}, {}), "there are 0 layers; there must be from 1 to 4096",
                       InvalidArgument);
  CHECK_THROWS_AS(LayerSimilarity({.layers = 1, .q_heads = 3, .kv_heads = 2}, {}), InvalidArgument);
  CHECK_THROWS_AS(LayerSimilarity({.layers = 1, .q_heads = 1, .kv_heads = -1}, {}), InvalidArgument);
  CHECK_THROWS_AS(LayerSimilarity(shape, {.budget = {.share = 0}}), InvalidArgument);
  CHECK_THROWS_AS(LayerSimilarity(shape, {.normalizer = NormalizerKind::power}), InvalidArgument);
  CHECK_THROWS_AS(LayerSimilarity(shape, {.tiles = -1}), InvalidArgument);
  LayerSimilarity similarity(shape, {});
  const Layer made = random_layer(shape, 1, 8, 4, 1), longer = random_layer(shape, 1, 9, 4, 1);
  const std::vector<double> importance{1, 1};
  CHECK_THROWS_WITH_AS(similarity.result(OverTiles::mean),
                       "no text was given; give q and k of every layer of one", InvalidArgument);
  CHECK_THROWS_AS(similarity.add_layer(made.k, made.k, 1), InvalidArgument);
  CHECK_THROWS_AS(similarity.add_layer(made.q, longer.k, 1), InvalidArgument);
  CHECK_THROWS_AS(similarity.add_layer(made.q, made.k, INFINITY), InvalidArgument);
  similarity.add_layer(made.q, made.k, 1);
  CHECK_THROWS_WITH_AS(similarity.add_layer(longer.q, longer.k, 1),
                       "layer 1 has 1 texts of 9 tokens, and layer 0 of the same call 1 of 8",
                       InvalidArgument);
  CHECK_THROWS_WITH_AS(similarity.result(OverTiles::mean), "of a text only 1 of 2 layers were given",
                       InvalidArgument);
  Layer odd = made;
  odd.k.data()[3] = NAN;
  CHECK_THROWS_WITH_AS(similarity.add_layer(odd.q, odd.k, 1), "q, k or the scale of layer 1 is not finite",
                       InvalidArgument);
  similarity.add_layer(made.q, made.k, 1);
  CHECK_THROWS_WITH_AS(plan_kascade(similarity, importance, 3),
                       "anchors is 3; it must be from 1 to 2, the layers", InvalidArgument);
  CHECK_THROWS_AS(plan_kascade(similarity, importance, 0), InvalidArgument);
  CHECK_THROWS_AS(plan_kascade(similarity, std::vector<double>{1}, 1), InvalidArgument);
  CHECK_THROWS_AS(plan_kascade(similarity, std::vector<double>{1, -1}, 1), InvalidArgument);
}
