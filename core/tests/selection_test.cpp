#include "core/selection.h"

#include <limits>

#include <doctest/doctest.h>

#include "core/error.h"

using namespace splash;

namespace {

// Two lists of two keys: one key head, five queries in tiles of four.
const AttentionShape kSmallShape{.q_heads = 2, .kv_heads = 1, .q_len = 5, .kv_len = 9};

Selection shared(std::vector<int32_t> keys) {
  return {.kind = SelectionKind::shared_keys, .k_keep = 2, .block = 4, .keys = std::move(keys)};
}

}  // namespace

TEST_CASE("a query finds the list of its tile and key head") {
  const AttentionShape shape{.batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 5, .kv_len = 99};
  Selection selection{.kind = SelectionKind::shared_keys, .k_keep = 1, .block = 4, .keys = {}};
  for (int32_t list = 0; list < 8; ++list) selection.keys.push_back(list);  // batch, key head, tile
  CHECK_NOTHROW(selection.validate(shape));
  CHECK(selection.tiles(shape) == 2);
  CHECK(*selection.keys_of(shape, 0, 0, 3) == 0);
  CHECK(*selection.keys_of(shape, 0, 1, 4) == 1);
  CHECK(*selection.keys_of(shape, 0, 2, 0) == 2);
  CHECK(*selection.keys_of(shape, 1, 3, 4) == 7);
}

TEST_CASE("shared keys rise inside the range, with padding only at the end") {
  for (const auto& keys : {std::vector<int32_t>{0, 8, 3, 4}, {7, -1, -1, -1}, {-1, -1, 0, 1}}) {
    CHECK_NOTHROW(shared(keys).validate(kSmallShape));
  }
  const std::string rule = "; the keys of a list rise strictly inside [0, 9), with -1 only at the end";
  const auto refused = [&](std::vector<int32_t> keys, const std::string& opening) {
    CHECK_THROWS_WITH_AS(shared(std::move(keys)).validate(kSmallShape), (opening + rule).c_str(),
                         InvalidArgument);
  };
  refused({0, 0, 1, 2}, "shared key 1 of list 0 is 0");
  refused({0, 1, 4, 3}, "shared key 1 of list 1 is 3");
  refused({0, 9, 1, 2}, "shared key 1 of list 0 is 9");
  refused({0, 1, -2, -1}, "shared key 0 of list 1 is -2");
  refused({-1, 1, 1, 2}, "shared key 1 of list 0 is 1");
  CHECK_THROWS_WITH_AS(shared({0, 1}).validate(kSmallShape),
                       "shared_keys has 2 entries; there must be 2 lists of k_keep 2", InvalidArgument);
}

TEST_CASE("what no selection may be") {
  Selection selection{.k_keep = 0};
  CHECK_THROWS_WITH(selection.validate(kSmallShape), "k_keep is 0; it must be at least 1");
  selection = {.block = 0};
  CHECK_THROWS_WITH(selection.validate(kSmallShape), "selection block is 0; it must be at least 1");
  selection = {.margin = std::numeric_limits<double>::infinity()};
  CHECK_THROWS_WITH(selection.validate(kSmallShape), "selection margin is inf; it must be finite");
}
