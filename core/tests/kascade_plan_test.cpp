// A plan of Kascade: its budget, what no plan may be, and its file.

#include "core/kascade_plan.h"

#include <cmath>
#include <fstream>

#include <doctest/doctest.h>

#include "core/error.h"
#include "core/scratch_folder.h"

using namespace splash;

namespace {

KascadePlan small_plan() {
  return {
      .model = "a \"tiny\" model\\",
      .made_by = "two\nlines",
      .q_heads = 4,
      .kv_heads = 2,
      .budget = {.tile = 16, .share = 0.1, .least_keys = 8},
      .normalizer = NormalizerKind::entmax,
      .alpha = 1.25,
      .over_tiles = OverTiles::minimum,
      .layers = {
          {0, {0, 1}, 0.1, 1.0}, {0, {1, 1}, 1.0 / 3, 0.7}, {2, {0, 1}, 0.0, 0.95}, {2, {0, 1}, 1e-7, 0.9}}};
}

void replace(std::string& text, const std::string& from, const std::string& to) {
  REQUIRE(text.find(from) != std::string::npos);
  text.replace(text.find(from), from.size(), to);
}

std::string refusal(const std::string& text) {
  try {
    parse_kascade_plan(text, "plan.toml");
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "taken";
}

}  // namespace

TEST_CASE("a tile keeps the share of what it sees, but not fewer than the least and its own") {
  const KascadeBudget budget{.tile = 32, .share = 0.1, .least_keys = 128};
  CHECK(budget.keys(32, 32) == 32);
  CHECK(budget.keys(128, 32) == 128);
  CHECK(budget.keys(1280, 32) == 128);
  CHECK(budget.keys(1281, 32) == 129);
  CHECK(budget.keys(8192, 32) == 820);
  CHECK(KascadeBudget{.tile = 32, .share = 0.01, .least_keys = 1}.keys(320, 32) == 32);
  CHECK(KascadeBudget{.tile = 32, .share = 1, .least_keys = 1}.keys(320, 32) == 320);
}

TEST_CASE("each tile of a causal mask keeps what its last query allows") {
  const KascadeBudget budget{.tile = 4, .share = 0.5, .least_keys = 3};
  CHECK(budget.keys_of_tiles(10, 10) == std::vector<int32_t>{4, 4, 5});
  CHECK(budget.keys_of_tiles(1, 100) == std::vector<int32_t>{50});
  CHECK(budget.keys_of_tiles(6, 3) == std::vector<int32_t>{1, 3});  // queries 0 to 2 see nothing
  CHECK(budget.keys_of_tiles(9, 0) == std::vector<int32_t>{0, 0, 0});
}

TEST_CASE("a plan is read as it was written") {
  KascadePlan plan = small_plan();
  const KascadePlan again = parse_kascade_plan(to_toml(plan), "plan.toml");
  plan.made_by = again.made_by;  // line ends become their pictures
  CHECK(again.made_by.find('\n') == std::string::npos);
  CHECK(again == plan);
  CHECK(plan.anchors() == std::vector<int64_t>{0, 2});
  CHECK(plan.identities() == 0.75);
  CHECK(std::isnan(parse_kascade_plan(to_toml({.layers = {{0, {0}}}}), "plan.toml").identities()));

  const ScratchFolder folder;
  const std::string path = folder.file("plan.toml");
  std::ofstream(path) << to_toml(plan);
  CHECK(read_kascade_plan(path) == plan);
  CHECK_THROWS_AS(read_kascade_plan(folder.file("other.toml")), InvalidArgument);
  CHECK_THROWS_AS(read_kascade_plan(folder.string()), InvalidArgument);
}

TEST_CASE("files that hold no plan get one sentence") {
  const struct {
    std::string from, to, said;
  } cases[] = {
      {"schema = \"splash kascade plan 1\"", "", "its schema must be \"splash kascade plan 1\""},
      {"schema = \"splash kascade plan 1\"", "schema = 1", "'schema' must be text"},
      {"kv_heads = 2", "kv_heads = 3", "q_heads is 4; it must be a multiple of kv_heads, 3"},
      {"kv_heads = 2", "kv_heads = 0", "kv_heads is 0; it must be from 1 to 4096"},
      {"kv_heads = 2", "kv_heads = 2.5", "'kv_heads' must hold whole numbers"},
      {"kv_heads = 2", "kv_heads = 9223372036854775807", "it must be from 1 to 4096"},
      {"tile = 16", "tile = -1", "tile is -1; it must be from 1 to 2147483648"},
      {"budget = 0.1", "budget = nan", "budget is nan; it must be above 0 and at most 1"},
      {"budget = 0.1", "budget = 1.5", "budget is 1.5; it must be above 0 and at most 1"},
      {"budget = 0.1", "", "the plan lacks 'budget', a number"},
      {"alpha = 1.25", "alpha = 0.5", "alpha is 0.5"},
      {"\"entmax\"", "\"power\"", "normalizer is power; a plan is for softmax or entmax"},
      {"\"minimum\"", "\"median\"", "tiles are joined by 'median'; allowed are mean and minimum"},
      {"anchors = [0, 2]", "anchors = [0, 3]",
       "plan.toml:14: anchors are [0, 3], and by their layers [0, 2]"},
      {"anchors = [0, 2]", "anchors = 0", "the plan needs 'anchors', a list of whole numbers"},
      {"anchor = 0\nheads = [0, 1]", "anchor = 1\nheads = [0, 1]", "layer 0 uses the keys of layer 1"},
      {"anchor = 2\nheads = [0, 1]\nimportance = 1e-07", "anchor = 0\nheads = [0, 1]\nimportance = 1e-07",
       "layer 3 uses the keys of layer 0; it may use its own or those of 2"},
      {"heads = [0, 1]", "heads = [1, 1]", "layer 0 is an anchor and maps head 0 to head 1"},
      {"heads = [1, 1]", "heads = [1, 2]",
       "layer 1 maps head 1 to head 2 of its anchor, which has heads 0 to 1"},
      {"heads = [1, 1]", "heads = [1]", "layer 1 maps 1 heads; there is one for each of the 2 key heads"},
      {"heads = [1, 1]", "heads = [1, \"a\"]", "'heads' must hold whole numbers"},
      {"heads = [1, 1]", "", "[[layer]] needs 'heads', a list of whole numbers"},
      {"importance = 0.1", "importance = inf", "layer 0 has importance inf"},
      {"importance = 0.1", "importence = 0.1", "[[layer]] lacks 'importance'"},
      {"[[layer]]", "[layer]", "plan.toml"},
      {"tile = 16", "tile = 16\nmore = 1", "unknown key 'more' in the plan"},
      {"tile = 16", "tile = ", "plan.toml:8: not valid TOML"},
  };
  for (const auto& one : cases) {
    std::string text = to_toml(small_plan());
    replace(text, one.from, one.to);
    INFO(one.from << " -> " << one.to);
    const std::string said = refusal(text);
    CHECK_MESSAGE(said.find(one.said) != std::string::npos, said);
    CHECK(said.find('\n') == std::string::npos);
  }
  CHECK(refusal("") != "taken");
  CHECK(refusal(std::string((1 << 20) + 1, ' ')).find("allowed are") != std::string::npos);
}
