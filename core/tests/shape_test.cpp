#include "core/shape.h"

#include <limits>

#include <doctest/doctest.h>

#include "core/attention_spec.h"
#include "core/checked.h"
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

TEST_CASE("a shape whose products pass what is counted is refused, and so is its tensor") {
  constexpr int64_t kHuge = int64_t{1} << 30;
  CHECK_THROWS_WITH_AS((AttentionShape{.batch = kHuge, .q_heads = kHuge, .kv_heads = 1}.validate()),
                       doctest::Contains("queries' elements than 2^56"), InvalidArgument);
  CHECK_THROWS_WITH_AS(
      (AttentionShape{.q_heads = 64, .kv_heads = 64, .q_len = kHuge, .kv_len = kHuge, .head_dim = 1}
           .validate()),
      doctest::Contains("pairs of query and key than 2^56"), InvalidArgument);
  CHECK_THROWS_WITH_AS((AttentionShape{.kv_len = kHuge, .head_dim = kHuge}.validate()),
                       doctest::Contains("keys' elements than 2^56"), InvalidArgument);
  CHECK_NOTHROW((AttentionShape{.q_len = int64_t{1} << 26, .kv_len = int64_t{1} << 26}.validate()));
  CHECK_THROWS_AS(Tensor<float>(kHuge, kHuge, kHuge, 1), InvalidArgument);
  CHECK_THROWS_AS(Tensor<float>(1, -1, 1, 1), InvalidArgument);
  CHECK(Tensor<float>(kHuge, kHuge, kHuge, 0).size() == 0);
}

TEST_CASE("products and counts are checked") {
  CHECK(checked_product({}) == 1);
  CHECK(checked_product({int64_t{1} << 31, int64_t{1} << 31}) == int64_t{1} << 62);
  CHECK(checked_product({int64_t{1} << 32, int64_t{1} << 31}) == std::nullopt);
  CHECK(checked_product({int64_t{1} << 40, int64_t{1} << 40, 0}) == 0);
  CHECK(checked_product({0, -1}) == std::nullopt);
  CHECK(checked_count(3) == 3);
  CHECK(checked_count(0x1p53) == int64_t{1} << 53);
  for (const double none : {-1.0, 1.5, 0x1p54, 1e300, std::numeric_limits<double>::infinity(),
                            std::numeric_limits<double>::quiet_NaN()}) {
    CAPTURE(none);
    CHECK(checked_count(none) == std::nullopt);
  }
}

TEST_CASE("a specification checks its parts") {
  AttentionSpec spec{.shape = {.q_heads = 4, .kv_heads = 4}};
  CHECK_NOTHROW(spec.validate());
  CHECK(spec.score_scale() == doctest::Approx(0.125));

  auto broken = spec;
  broken.normalizer.alpha = {1.0};
  CHECK_THROWS_WITH(broken.validate(),
                    "alpha is 1; entmax takes 1.000001 to 64 (towards 1 it becomes softmax)");
  for (const double alpha : {1 + 9e-7, 64.001, 1e308, std::numeric_limits<double>::infinity(),
                             std::numeric_limits<double>::quiet_NaN()}) {
    broken.normalizer.alpha = {alpha};
    CHECK_THROWS_AS(broken.validate(), InvalidArgument);
  }
  for (const double alpha : {1 + 1e-6, kLeastAlpha, kMostAlpha}) {
    broken.normalizer.alpha = {alpha};
    CHECK_NOTHROW(broken.validate());
  }
  broken.normalizer = {.kind = NormalizerKind::power, .alpha = {0.0}};
  CHECK_THROWS_WITH(broken.validate(), "alpha is 0; power needs a finite alpha > 0");
  broken.normalizer = spec.normalizer;
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
