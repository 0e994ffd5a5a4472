#include "core/shape.h"

#include <limits>

#include <doctest/doctest.h>

#include "core/attention_spec.h"
#include "core/error.h"
#include "core/tensor.h"

using namespace splash;

TEST_CASE("grouped query heads read their key head") {
  const AttentionShape shape{.q_heads = 6, .kv_heads = 2};
  CHECK(shape.group() == 3);
  CHECK(shape.kv_head_of(2) == 0);
  CHECK(shape.kv_head_of(3) == 1);
}

TEST_CASE("shapes that cannot be are refused in one sentence") {
  CHECK_THROWS_AS((AttentionShape{.q_heads = 3, .kv_heads = 2}.validate()), InvalidArgument);
  CHECK_THROWS_AS((AttentionShape{.kv_len = int64_t{1} << 31}.validate()), InvalidArgument);
  CHECK_THROWS_WITH((AttentionShape{.kv_len = 0}.validate()), "kv_len is 0; it must be at least 1");
}

TEST_CASE("a specification checks its parts") {
  AttentionSpec spec{.shape = {.q_heads = 4, .kv_heads = 4}};
  CHECK_NOTHROW(spec.validate());
  CHECK(spec.score_scale() == doctest::Approx(0.125));

  auto broken = spec;
  broken.normalizer.alpha = {1.0};
  CHECK_THROWS_WITH(broken.validate(), "alpha is 1; entmax needs a finite alpha > 1");
  broken.normalizer.alpha = {std::numeric_limits<double>::quiet_NaN()};
  CHECK_THROWS_AS(broken.validate(), InvalidArgument);
  broken.normalizer.alpha = {1.5, 1.5};
  CHECK_THROWS_AS(broken.validate(), InvalidArgument);

  broken = spec;
  broken.selection = {.kind = SelectionKind::top_k_row, .k_keep = 0};
  CHECK_THROWS_WITH(broken.validate(), "k_keep is 0; it must be at least 1");
  broken = spec;
  broken.scale = std::numeric_limits<double>::infinity();
  CHECK_THROWS_AS(broken.validate(), InvalidArgument);
}

TEST_CASE("names of normalizers and selections go both ways") {
  for (const auto kind : {NormalizerKind::softmax, NormalizerKind::entmax, NormalizerKind::power,
                          NormalizerKind::power_unnormalized}) {
    CHECK(normalizer_from_string(to_string(kind)) == kind);
  }
  for (const auto kind : {SelectionKind::all, SelectionKind::top_k_row, SelectionKind::top_k_block,
                          SelectionKind::significant_blocks, SelectionKind::shared_keys}) {
    CHECK(selection_from_string(to_string(kind)) == kind);
  }
  CHECK_THROWS_AS(normalizer_from_string("sparsemax"), InvalidArgument);
  CHECK_THROWS_AS(selection_from_string("top_k"), InvalidArgument);
}

TEST_CASE("tensors are contiguous [batch, heads, length, dim], and views check their extents") {
  Tensor<float> t(2, 3, 4, 5);
  for (int64_t i = 0; i < t.size(); ++i) t.data()[i] = static_cast<float>(i);
  CHECK(t.row(1, 2, 3)[4] == 119.0f);
  CHECK(t.matrix(1, 0)(2, 3) == 73.0f);
  CHECK(t.cast<double>().row(0, 1, 0)[0] == 20.0);
  CHECK_NOTHROW(require_extents("q", t.view(), 2, 3, 4, 5));
  CHECK_THROWS_WITH(require_extents("q", t.view(), 2, 3, 4, 6),
                    "q has shape [2, 3, 4, 5]; it must be [2, 3, 4, 6]");
}
