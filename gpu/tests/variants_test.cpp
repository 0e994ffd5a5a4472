// Every variant's declaration, without a device: complete, consistent, and with a plan for an H200.

#include <map>
#include <set>

#include <doctest/doctest.h>

#include "gpu/engine/work.h"
#include "gpu/entmax/forward.h"
#include "gpu/tests/h200.h"
#include "gpu/tests/ladder_cases.h"
#include "gpu/tests/ladder_run.h"

using namespace splash;
using namespace splash::gpu;
using gpu::testing::h200;
using gpu::testing::ladder_cases;
using gpu::testing::LadderRun;

namespace {

#define SPLASH_LADDER(ladder) #ladder,
const std::set<std::string> kLadders{
    // the flagship, the folders of gpu/ladders and the example, as CMake lists them
    "entmax",
#include "ladder_names.inc"
};
#undef SPLASH_LADDER

}  // namespace

TEST_CASE("a seed that is drawn says how its numbers come again") {
  using gpu::testing::TestSeed;
  CHECK(TestSeed::of(nullptr).number == 1);
  CHECK(TestSeed::of("17").number == 17);
  CHECK(TestSeed::of("17").told.empty());
  const TestSeed drawn = TestSeed::of("random");
  const std::string number = std::to_string(drawn.number);
  CHECK(drawn.told == "SPLASH_TEST_SEED=" + number + " draws the same numbers");
  CHECK(TestSeed::of(number.c_str()).number == drawn.number);
}

TEST_CASE("every ladder has rungs, and each of them its own id and place") {
  std::set<std::string> ids, ladders;
  for (const Variant* variant : all_variants()) {
    CAPTURE(variant->id());
    CHECK(ids.insert(variant->id()).second);
    ladders.insert(variant->ladder);
  }
  CHECK(ladders == kLadders);
}

TEST_CASE(
    "every variant says what is new, once measured why it gains what it gains, and what it was promised") {
  for (const Variant* variant : all_variants()) {
    CAPTURE(variant->id());
    CHECK(variant->idea.size() > 20);
    CHECK((variant->finding.empty() || variant->finding.size() > 20));  // empty: not measured yet
    CHECK_FALSE(variant->limits.dtypes.empty());
    if (!variant->predicted.over.empty())
      CHECK_NOTHROW(find_variant(variant->ladder + "/" + variant->predicted.over));
    CHECK(variant->predicted.low <= variant->predicted.high);
    CHECK(variant->profile.phases.empty() == (variant->profile.launch == nullptr));
    for (const Dtype dtype : variant->limits.dtypes) {
      CHECK(variant->tolerance.of(dtype) > 0);
      CHECK(variant->tolerance.of(dtype) < 1e-3);
    }
  }
}

TEST_CASE(
    "every variant plans each of its cases within an H200's limits, and executes no less than it uses") {
  for (const Variant* variant : all_variants()) {
    CAPTURE(variant->id());
    const auto cases = ladder_cases(*variant, h200());
    CHECK_FALSE(cases.empty());
    for (const auto& c : cases) {
      CAPTURE(c.name);
      const Plan plan = variant->plan(c.spec, c.dtype, h200());
      CHECK_FALSE(plan.kernels.empty());
      for (const KernelLaunch& kernel : plan.kernels) {
        CHECK(kernel.function != nullptr);
        CHECK(kernel.blocks >= 1);
        CHECK(kernel.threads >= 32);
        CHECK(kernel.threads <= 1024);
        CHECK(kernel.shared_bytes <= h200().shared_bytes_per_block);
      }
      CHECK(plan.workspace_bytes >= 0);
      const Work work = count_work(*variant, c.spec, c.dtype, plan, h200());
      CHECK(work.useful_flops >= 0);
      // Useful work counts both products of every visible pair; the flagship computes the second only where p
      // > 0.
      const double least = variant->ladder == "entmax" ? 0.5 : 1;
      CHECK(work.executed_flops >= least * work.useful_flops);
      CHECK(work.dram_bytes > 0);
      CHECK(work.l2_bytes > 0);
    }
  }
}

TEST_CASE("the chosen block of Kascade's ladder follows heads, lists, head_dim and memory") {
  const Variant& chosen = find_variant("kascade/8-chosen-block");
  const auto tile_of = [&](int64_t group, int64_t tokens, int64_t keys, int64_t head_dim, DeviceInfo device) {
    AttentionSpec spec;
    spec.shape = {1, 8 * group, 8, 32768, 32768, head_dim};
    spec.normalizer.kind = NormalizerKind::softmax;
    spec.selection = {.kind = SelectionKind::shared_keys, .k_keep = keys, .block = tokens};
    const Plan plan = chosen.plan(spec, Dtype::bf16, device);
    return std::pair(plan.tile.q, plan.tile.k);
  };
  DeviceInfo small = h200();
  small.shared_bytes_per_block = 99 * 1024;
  small.shared_bytes_per_multiprocessor = 100 * 1024;
  DeviceInfo a100 = h200();
  a100.compute_major = 8;
  CHECK(tile_of(4, 256, 3277, 128, h200()) == std::pair(1024, 128));
  CHECK(tile_of(2, 256, 3277, 128, h200()) == std::pair(512, 128));  // with 1024 rows, half would be empty
  CHECK(tile_of(1, 256, 3277, 128, h200()) == std::pair(256, 128));
  CHECK(tile_of(4, 256, 3277, 32, h200()) == std::pair(256, 128));  // little to load
  CHECK(tile_of(4, 32, 3277, 128, h200()) == std::pair(128, 64));
  CHECK(tile_of(4, 32, 32, 128, h200()) == std::pair(128, 32));  // one short list: no padding
  CHECK(tile_of(2, 32, 3277, 128, h200()) == std::pair(64, 64));
  CHECK(tile_of(4, 32, 3277, 128, small) == std::pair(128, 64));
  CHECK_THROWS_AS(tile_of(4, 256, 3277, 128, small), Unsupported);
  CHECK_THROWS_AS(tile_of(4, 256, 3277, 128, a100), Unsupported);  // no clusters
}

TEST_CASE("the flagship refuses what its bounds do not hold for, before anything is launched") {
  AttentionSpec spec;
  spec.shape = {1, 2, 2, 64, 64, 64};
  const auto why = [](const AttentionSpec& refused, Dtype dtype) {
    try {
      entmax::enqueue_forward(refused, dtype, {});
    } catch (const Unsupported& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(why(spec, Dtype::f64) == "entmax forward takes bfloat16, float16 and float32, not float64");
  AttentionSpec other = spec;
  other.normalizer.alpha = {1.5, 2.5};
  CHECK(why(other, Dtype::bf16).find("alpha from 1.01 to 2") != std::string::npos);
  CHECK(unsupported_reason(find_variant("entmax/0-one-pass"), other, Dtype::bf16, h200())
            .find("alpha from 1.01 to 2") != std::string::npos);
  other = spec;
  other.scale = -1;
  CHECK(why(other, Dtype::bf16) == "entmax forward takes a scale above 0, not -1.000000");
  other = spec;
  other.normalizer.kind = NormalizerKind::softmax;
  CHECK(why(other, Dtype::bf16) == "entmax forward takes the normalizer entmax, not softmax");
  other = spec;
  other.shape.head_dim = 264;
  CHECK(why(other, Dtype::bf16).find("multiples of 8 up to 256") != std::string::npos);
  other = spec;
  other.selection = {.kind = SelectionKind::top_k_block, .k_keep = 8};
  CHECK(why(other, Dtype::bf16).find("all keys or the top_k_row") != std::string::npos);
}

namespace {

LadderRun ladder_run(const std::map<std::string, std::string>& settings) {
  return LadderRun::read([&](const char* name) {
    const auto found = settings.find(name);
    return found == settings.end() ? nullptr : found->second.c_str();
  });
}

}  // namespace

TEST_CASE("a run of the ladders' tests takes all cases, and its parts take each of them once") {
  const Variant& cluster = find_variant("large_dims/4-cluster");
  const auto cases = ladder_cases(cluster, h200());
  const auto taken = [&](const std::map<std::string, std::string>& settings) {
    std::multiset<std::string> names;
    for (size_t i = 0; i < cases.size(); ++i)
      if (ladder_run(settings).takes(static_cast<int64_t>(i), cases[i].spec)) names.insert(cases[i].name);
    return names;
  };
  const auto all = taken({});
  CHECK(all.size() == cases.size());
  CHECK(ladder_run({}).oracle);
  std::multiset<std::string> parts;
  for (const char* first : {"0", "1", "2"})
    parts.merge(taken({{"SPLASH_TEST_EVERY", "3"}, {"SPLASH_TEST_FIRST", first}}));
  CHECK(parts == all);

  const auto smaller = taken({{"SPLASH_TEST_HEAD_DIM", "2048"}});
  for (const std::string& name : all) {
    CAPTURE(name);
    CHECK(smaller.count(name) == (name.find("d 8192") == std::string::npos ? 1 : 0));
  }
  CHECK(smaller.size() < all.size());
  CHECK(ladder_run({{"SPLASH_TEST_VARIANT", "large_dims/4"}}).takes(cluster));
  CHECK_FALSE(ladder_run({{"SPLASH_TEST_VARIANT", "large_dims/5"}}).takes(cluster));
  CHECK_FALSE(ladder_run({{"SPLASH_TEST_ORACLE", "0"}}).oracle);
}

TEST_CASE("settings that would run nothing, or something else than was meant, are refused") {
  const auto why = [](const std::map<std::string, std::string>& settings) {
    try {
      ladder_run(settings);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(why({{"SPLASH_TEST_EVERY", "8"}, {"SPLASH_TEST_FIRST", "8"}}) ==
        "SPLASH_TEST_FIRST is '8'; it must be a whole number from 0 to 7");
  CHECK(why({{"SPLASH_TEST_FIRST", "1"}}) ==
        "SPLASH_TEST_FIRST is '1'; it must be a whole number from 0 to 0");
  CHECK(why({{"SPLASH_TEST_EVERY", "0"}}) ==
        "SPLASH_TEST_EVERY is '0'; it must be a whole number of at least 1");
  CHECK(why({{"SPLASH_TEST_HEAD_DIM", "many"}}) ==
        "SPLASH_TEST_HEAD_DIM is 'many'; it must be a whole number of at least 1");
  CHECK(why({{"SPLASH_TEST_ORACLE", "off"}}) ==
        "SPLASH_TEST_ORACLE is 'off'; it must be a whole number from 0 to 1");
  CHECK(why({{"SPLASH_TEST_VARIANT", "wmma/99"}}) ==
        "SPLASH_TEST_VARIANT is 'wmma/99'; no variant's id begins so (splash list variants)");
}
