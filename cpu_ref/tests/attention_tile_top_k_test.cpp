// The choice of a tile's keys: against the naive oracle's probabilities, with ties, masks and wrong
// arguments.
#include <doctest/doctest.h>

#include "core/error.h"
#include "cpu_ref/attention/naive.h"
#include "cpu_ref/attention/tile_top_k.h"
#include "cpu_ref/tests/attention_test_support.h"

using namespace splash;
using namespace splash::cpu_ref;
using namespace splash::cpu_ref::test;

namespace {

AttentionSpec softmax_spec(const AttentionShape& shape, const Mask& mask = {}) {
  return {shape, 0.9, {NormalizerKind::softmax, {1.5}}, {}, mask};
}

TileTopK choose(const AttentionSpec& spec, const AttentionInputs<double>& inputs,
                const TileTopKOptions& options) {
  return tile_top_k(spec, inputs.q, inputs.k, options);
}

}  // namespace

TEST_CASE("the sums are those of the tile's probabilities, and the largest are listed") {
  const AttentionShape shape{2, 6, 2, 11, 23, 4};
  const auto inputs = random_inputs<double>(shape, 30);
  for (const NamedMask& mask : masks_for(shape)) {
    INFO(mask.name);
    const AttentionSpec spec = softmax_spec(shape, mask.mask);
    const TileTopK chosen = choose(spec, inputs, {.tile = 4, .k = 5});
    const auto p = naive_forward(spec, inputs).probabilities;
    const Selection& selection = chosen.selection;
    CHECK_NOTHROW(selection.validate(shape));
    CHECK(selection.k_keep == 5);
    for (int64_t list = 0; list < 2 * 2 * 3; ++list) {
      const int64_t batch = list / 6, kv_head = list / 3 % 2, tile = list % 3;
      const double* const pooled = chosen.pooled.data() + list * shape.kv_len;
      const int32_t* const keys = selection.keys.data() + list * selection.k_keep;
      double smallest_listed = INFINITY, largest_other = 0;
      for (int64_t j = 0; j < shape.kv_len; ++j) {
        double sum = 0;
        for (int64_t h = 3 * kv_head; h < 3 * kv_head + 3; ++h) {
          for (int64_t i = 4 * tile; i < std::min<int64_t>(4 * tile + 4, 11); ++i)
            sum += p.row(batch, h, i)[j];
        }
        CHECK(pooled[j] == doctest::Approx(sum));
        const bool listed = std::find(keys, keys + selection.k_keep, j) != keys + selection.k_keep;
        (listed ? smallest_listed : largest_other) =
            listed ? std::min(smallest_listed, pooled[j]) : std::max(largest_other, pooled[j]);
      }
      if (mask.mask.cu_seqlens_q.empty() && keys[4] >= 0) CHECK(smallest_listed >= largest_other);
    }
  }
}

TEST_CASE("the share is of the keys that the tile's last query sees") {
  const AttentionShape shape{1, 1, 1, 10, 25, 3};
  const auto inputs = random_inputs<double>(shape, 31);
  const auto lengths = [&](const Mask& mask, const TileTopKOptions& options) {
    const Selection selection = choose(softmax_spec(shape, mask), inputs, options).selection;
    std::vector<int64_t> found;
    for (int64_t tile = 0; tile < selection.tiles(shape); ++tile) {
      const auto begin = selection.keys.begin() + tile * selection.k_keep;
      found.push_back(std::find(begin, begin + selection.k_keep, -1) - begin);
    }
    return found;
  };
  CHECK(lengths({.causal = true}, {.tile = 4, .share = 0.1}) ==
        std::vector<int64_t>{2, 3, 3});  // a tenth of 19, 23 and 25 keys, rounded up
  CHECK(lengths({}, {.tile = 4, .share = 0.1}) == std::vector<int64_t>{3, 3, 3});
  CHECK(lengths({.causal = true}, {.tile = 4, .k = 20}) == std::vector<int64_t>{19, 20, 20});
  CHECK(lengths({}, {.tile = 4, .k = 99}) == std::vector<int64_t>{25, 25, 25});
}

TEST_CASE("of equal sums the lower key is listed, and a tile that sees nothing lists nothing") {
  const AttentionShape shape{1, 1, 1, 6, 4, 3};  // causal, bottom-right: queries 0 and 1 see nothing
  auto inputs = random_inputs<double>(shape, 32);
  inputs.k.matrix(0, 0).setOnes();
  const Selection none = choose(softmax_spec(shape), inputs, {.tile = 2, .k = 2}).selection;
  CHECK(none.keys == std::vector<int32_t>{0, 1, 0, 1, 0, 1});
  const Selection causal =
      choose(softmax_spec(shape, {.causal = true}), inputs, {.tile = 2, .k = 2}).selection;
  CHECK(causal.keys == std::vector<int32_t>{-1, -1, 0, 1, 0, 1});
}

TEST_CASE("choosing all keys changes no result") {
  const AttentionShape shape{1, 4, 2, 9, 14, 3};
  const auto inputs = random_inputs<double>(shape, 33);
  AttentionSpec spec = softmax_spec(shape, {.causal = true});
  const auto plain = forward(spec, inputs);
  spec.selection = choose(spec, inputs, {.tile = 4, .share = 1}).selection;
  CHECK(max_error(forward(spec, inputs).out, plain.out) < 1e-14);
}

TEST_CASE("wrong choices are refused") {
  const AttentionShape shape{1, 1, 1, 4, 4, 3};
  const auto inputs = random_inputs<double>(shape, 34);
  const AttentionSpec spec = softmax_spec(shape);
  CHECK_THROWS_WITH(choose(spec, inputs, {.tile = 0}), "tile is 0; it must be at least 1");
  CHECK_THROWS_WITH(choose(spec, inputs, {.share = 0}), "share is 0; it must be above 0 and at most 1");
  CHECK_THROWS_AS(choose(spec, inputs, {.k = -1}), InvalidArgument);
  AttentionSpec entmax = spec;
  entmax.normalizer = {};
  CHECK_THROWS_AS(choose(entmax, inputs, {}), InvalidArgument);
}
