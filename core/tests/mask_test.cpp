#include "core/mask.h"

#include <cstdlib>

#include <doctest/doctest.h>

#include "core/error.h"

using namespace splash;

namespace {

// The definition, word for word. It is the oracle of Mask::row.
bool sees(const AttentionShape& shape, const Mask& mask, int64_t i, int64_t j) {
  int64_t q_end = shape.q_len;
  int64_t k_end = shape.kv_len;
  if (!mask.cu_seqlens_q.empty()) {
    bool same = false;
    for (size_t s = 0; s + 1 < mask.cu_seqlens_q.size(); ++s) {
      const bool q_inside = i >= mask.cu_seqlens_q[s] && i < mask.cu_seqlens_q[s + 1];
      const bool k_inside = j >= mask.cu_seqlens_k[s] && j < mask.cu_seqlens_k[s + 1];
      if (q_inside && k_inside) {
        same = true;
        q_end = mask.cu_seqlens_q[s + 1];
        k_end = mask.cu_seqlens_k[s + 1];
      }
    }
    if (!same) return false;
  }
  if (mask.causal && k_end - 1 - j < q_end - 1 - i) return false;
  if (mask.window > 0 && std::abs((k_end - j) - (q_end - i)) >= mask.window) return false;
  if (!mask.pairs.empty() && (mask.pairs[i * ((shape.kv_len + 63) / 64) + j / 64] >> j % 64) % 2 == 0)
    return false;
  return mask.q_positions.empty() || mask.k_positions[j] <= mask.q_positions[i];
}

void check_against_definition(const AttentionShape& shape, const Mask& mask) {
  mask.validate(shape);
  for (int64_t i = 0; i < shape.q_len; ++i) {
    const RowMask row = mask.row(shape, 0, 0, i);
    int64_t count = 0;
    for (int64_t j = 0; j < shape.kv_len; ++j) {
      CAPTURE(i);
      CAPTURE(j);
      CHECK(row.visible(j) == sees(shape, mask, i, j));
      count += row.visible(j) ? 1 : 0;
    }
    CHECK(row.count() == count);
  }
}

}  // namespace

TEST_CASE("every mask and every conjunction follows its definition") {
  for (const auto& [q_len, kv_len] : {std::pair<int64_t, int64_t>{5, 5}, {3, 8}, {8, 3}, {1, 7}}) {
    const AttentionShape shape{.q_len = q_len, .kv_len = kv_len};
    for (const int64_t window : {0, 1, 2, 5, 8, 20}) {
      for (int parts = 0; parts < 16; ++parts) {
        Mask mask{.causal = parts % 2 == 1, .window = window};
        if (parts / 2 % 2 == 1) {
          for (int64_t i = 0; i < q_len; ++i) mask.q_positions.push_back((i * 3) % 5);
          for (int64_t j = 0; j < kv_len; ++j) mask.k_positions.push_back((j * 2) % 7);
        }
        for (int64_t i = 0; i < q_len && parts / 8 == 1; ++i)
          mask.pairs.push_back((i * 0x5DEECE66Du >> 3) % (uint64_t{1} << kv_len));
        if (parts / 4 % 2 == 1) {
          mask.cu_seqlens_q = {0, q_len / 2, q_len / 2, q_len};  // the middle sequence is empty
          mask.cu_seqlens_k = {0, kv_len / 3, kv_len / 2, kv_len};
        }
        check_against_definition(shape, mask);
      }
    }
  }
}

TEST_CASE("causal meets at the end: the last query sees the last key") {
  const AttentionShape decode{.q_len = 1, .kv_len = 100};
  CHECK(visible_pairs(decode, Mask{.causal = true}) == 100);
  const AttentionShape square{.batch = 2, .q_heads = 3, .kv_heads = 3, .q_len = 64, .kv_len = 64};
  CHECK(visible_pairs(square, Mask{.causal = true}) == 6 * 64 * 65 / 2);
}

TEST_CASE("a window's pairs are those of its band") {
  const AttentionShape square{.q_len = 64, .kv_len = 64};
  CHECK(visible_pairs(square, Mask{.causal = true, .window = 1}) == 64);
  CHECK(visible_pairs(square, Mask{.causal = true, .window = 16}) == 16 * 17 / 2 + 48 * 16);
  CHECK(visible_pairs(square, Mask{.causal = true, .window = int64_t{1} << 62}) == 64 * 65 / 2);
  const AttentionShape decode{.q_len = 1, .kv_len = 100};
  CHECK(Mask{.causal = true, .window = 7}.row(decode, 0, 0, 0).begin == 93);
  CHECK(visible_pairs(square, Mask{.window = 1}) == 64);
  CHECK(visible_pairs(square, Mask{.window = 16}) == 2 * (16 * 17 / 2 + 48 * 16) - 64);
  CHECK_FALSE(Mask{.window = 64}.has_window(square));
  CHECK(Mask{.window = 63}.has_window(square));
  CHECK(Mask{.window = 99}.has_window({.q_len = 100, .kv_len = 1}));  // the first query's place is -99
}

TEST_CASE("positions may differ by batch and by head") {
  const AttentionShape shape{.batch = 2, .q_heads = 2, .kv_heads = 1, .q_len = 1, .kv_len = 3};
  Mask mask;
  mask.q_positions = {0, 1, 2, 3};
  mask.k_positions = {0, 1, 2};
  mask.validate(shape);
  CHECK(mask.row(shape, 0, 0, 0).count() == 1);
  CHECK(mask.row(shape, 0, 1, 0).count() == 2);
  CHECK(mask.row(shape, 1, 0, 0).count() == 3);
}

TEST_CASE("pairs: a bit each, of all heads, of batch entries or of heads") {
  const AttentionShape shape{.batch = 2, .q_heads = 2, .kv_heads = 1, .q_len = 2, .kv_len = 70};
  Mask mask;
  for (int64_t i = 0; i < 8; ++i) {
    mask.pairs.push_back(uint64_t{1} << i | uint64_t{1} << 63);
    mask.pairs.push_back(i == 3 ? 0x3F : 0);
  }
  mask.validate(shape);
  CHECK_FALSE(mask.same_for_all_heads(shape));
  CHECK(mask.row(shape, 1, 1, 0).visible(6));
  CHECK_FALSE(mask.row(shape, 1, 1, 0).visible(7));
  CHECK(mask.row(shape, 0, 1, 1).count() == 8);
  CHECK(mask.row(shape, 0, 1, 1).sees_some(64, 6));
  CHECK(mask.row(shape, 0, 1, 1).sees_whole(64, 6));
  CHECK_FALSE(mask.row(shape, 0, 1, 0).sees_some(64, 6));
  CHECK_FALSE(mask.row(shape, 0, 1, 1).sees_whole(32, 32));
  CHECK(visible_pairs(shape, mask) == 8 * 2 + 6);
  mask.pairs.resize(4);
  CHECK(mask.same_for_all_heads(shape));
  CHECK(visible_pairs(shape, mask) == 4 * 4 * 2 / 2);
  mask.pairs.resize(5);
  CHECK_THROWS_WITH_AS(
      mask.validate(shape),
      "pairs has 5 words; allowed: 4 (q_len x words), or batch or batch x q_heads times as many",
      InvalidArgument);
  mask.pairs = {0, 1 << 6, 0, 0};
  CHECK_THROWS_WITH_AS(mask.validate(shape), "pairs has a bit past the last key; allowed: bits of keys alone",
                       InvalidArgument);
}

TEST_CASE("visible pairs by positions alone, in any order") {
  const AttentionShape shape{.batch = 2, .q_heads = 3, .kv_heads = 3, .q_len = 5, .kv_len = 4};
  Mask mask{.q_positions = {3, 0, 9, 2, 2}, .k_positions = {2, 7, 0, 2}};
  CHECK(mask.same_for_all_heads(shape));
  CHECK(visible_pairs(shape, mask) == 6 * (3 + 1 + 4 + 3 + 3));
  mask.q_positions = {3, 0, 9, 2, 2, 0, 0, 0, 0, 0};  // one row of positions per batch entry
  CHECK_FALSE(mask.same_for_all_heads(shape));
  CHECK(visible_pairs(shape, mask) == 3 * (3 + 1 + 4 + 3 + 3) + 3 * 5);
}

TEST_CASE("masks that do not fit the shape are refused") {
  const AttentionShape shape{.q_len = 4, .kv_len = 6};
  CHECK_THROWS_WITH((Mask{.q_positions = {0, 1, 2, 3}}.validate(shape)),
                    "only q_positions is given; k_positions is needed too");
  CHECK_THROWS_WITH((Mask{.causal = true, .window = -3}.validate(shape)),
                    "window is -3; it must be at least 1, or 0 for no window");
  Mask mask{.q_positions = {0, 1, 2}, .k_positions = {0, 1, 2, 3, 4, 5}};
  CHECK_THROWS_AS(mask.validate(shape), InvalidArgument);
  mask = Mask{.cu_seqlens_q = {0, 4}, .cu_seqlens_k = {0, 5}};
  CHECK_THROWS_AS(mask.validate(shape), InvalidArgument);
  mask = Mask{.cu_seqlens_q = {0, 3, 2, 4}, .cu_seqlens_k = {0, 1, 2, 6}};
  CHECK_THROWS_AS(mask.validate(shape), InvalidArgument);
  mask = Mask{.cu_seqlens_q = {0, 2, 4}, .cu_seqlens_k = {0, 6}};
  CHECK_THROWS_AS(mask.validate(shape), InvalidArgument);
}
