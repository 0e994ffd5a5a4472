#include "analysis/scaling.h"

#include <cmath>

#include <doctest/doctest.h>

#include "analysis/tests/example_kernels.h"

using namespace splash;
using namespace splash::analysis;
using namespace splash::report;
using namespace splash::analysis::testing;

namespace {

const std::vector<Ceiling> kCeilings{ceiling("launch", "", 0), ceiling("graph node", "", 0)};

// 100 multiprocessors hold 8 blocks each, and a wave takes latency + share * (blocks per multiprocessor).
KernelCase kernel(int64_t heads, double latency, double share) {
  KernelCase k;
  k.case_id = std::to_string(heads);
  k.implementation = "a/1";
  k.setting = "float32, d 64";
  k.shape = {.batch = 1, .q_heads = heads, .kv_heads = heads, .q_len = 64, .kv_len = 64, .head_dim = 64};
  k.flops = 1e9 * static_cast<double>(heads);
  k.use = {.blocks = 100 * heads, .threads = 256, .registers = 32, .shared_bytes = 0};
  const double waves = std::max(1.0, static_cast<double>(heads) / 8);
  k.seconds = waves * (latency + share * std::min<double>(static_cast<double>(heads), 8));
  return k;
}

}  // namespace

TEST_CASE("what the time of a wave does not owe to its blocks is latency") {
  for (const int64_t more : {4, 8, 32}) {
    CAPTURE(more);
    const KernelCase few = kernel(1, 3e-3, 1e-3), many = kernel(more, 3e-3, 1e-3);
    const auto scaling = scaling_of(few, {few, many}, kMachine, kCeilings);
    REQUIRE(scaling);
    CHECK(scaling->case_id == many.case_id);
    CHECK(scaling->blocks == static_cast<double>(more));
    CHECK(scaling->busy == doctest::Approx(0.25));
    CHECK(scaling->rate == doctest::Approx(static_cast<double>(more) * few.seconds / many.seconds));
    // The same comparison from the other side: at 8 blocks per multiprocessor the shares are 8 of 11.
    const auto back = scaling_of(many, {few, many}, kMachine, kCeilings);
    REQUIRE(back);
    CHECK(back->rate == doctest::Approx(1 / scaling->rate));
    if (more >= 8) CHECK(back->busy == doctest::Approx(8.0 / 11));
  }
}

TEST_CASE("idle multiprocessors that get blocks tell of no share, only of the rate") {
  KernelCase half = kernel(1, 1e-3, 0), full = kernel(2, 1e-3, 0);
  half.use.blocks = 50;
  full.use.blocks = 100;
  const auto scaling = scaling_of(half, {full}, kMachine, kCeilings);
  REQUIRE(scaling);
  CHECK(scaling->rate == doctest::Approx(2));
  CHECK(std::isnan(scaling->busy));
}

TEST_CASE("launches are taken off before rates are compared") {
  const std::vector<Ceiling> slow{ceiling("launch", "", 1e-3), ceiling("graph node", "", 1e-3)};
  KernelCase few = kernel(1, 0, 1e-3), many = kernel(4, 0, 1e-3);
  few.seconds += 1e-3;
  many.seconds += 1e-3;
  CHECK(scaling_of(few, {many}, kMachine, slow)->rate == doctest::Approx(1));
}

TEST_CASE("only cases that differ in blocks alone are compared, of equal lengths before others") {
  const KernelCase few = kernel(1, 3e-3, 1e-3);
  KernelCase other = kernel(8, 3e-3, 1e-3);
  other.setting = "bfloat16, d 64";
  CHECK_FALSE(scaling_of(few, {few, other}, kMachine, kCeilings));
  other = kernel(8, 3e-3, 1e-3);
  other.implementation = "a/2";
  CHECK_FALSE(scaling_of(few, {other}, kMachine, kCeilings));
  other = kernel(8, 3e-3, 1e-3);
  other.setting += ", graph";
  other.replayed = true;
  CHECK(scaling_of(few, {other}, kMachine, kCeilings)->case_id == "8");
  CHECK(scaling_of(few, {other, kernel(4, 3e-3, 1e-3)}, kMachine, kCeilings)->case_id == "4");
  KernelCase longer = kernel(32, 3e-3, 1e-3);
  longer.shape.kv_len = 128;
  CHECK(scaling_of(few, {longer}, kMachine, kCeilings)->case_id == "32");
  CHECK(scaling_of(few, {longer, kernel(4, 3e-3, 1e-3)}, kMachine, kCeilings)->case_id == "4");
}

TEST_CASE("a neighbouring rung of which more blocks are resident tells as much") {
  // 20 waves of one block per multiprocessor, or 10 waves of two, whose blocks need a third less shared
  // memory.
  KernelCase one = kernel(20, 0, 0), two = one;
  one.kernel = two.kernel = "attend";
  one.problem = two.problem = "the same";
  one.use.shared_bytes = 200000;
  two.use.shared_bytes = 100000;
  two.implementation = "a/2-smaller";
  two.case_id = "two";
  one.seconds = 20 * (3e-3 + 1e-3);
  two.seconds = 10 * (3e-3 + 2 * 1e-3);
  const auto seen = residency_of(one, {one, two}, kMachine, kCeilings);
  REQUIRE(seen);
  CHECK(seen->case_id == "two");
  CHECK(seen->blocks == 2);
  CHECK(seen->busy == doctest::Approx(0.25));
  CHECK(residency_of(two, {one}, kMachine, kCeilings)->busy == doctest::Approx(0.4));
  for (const char* other : {"a/3-far", "b/2-another"}) {
    two.implementation = other;
    CHECK_FALSE(residency_of(one, {two}, kMachine, kCeilings));
  }
  two.implementation = "a/2-smaller";
  two.flops *= 1.2;
  CHECK_FALSE(residency_of(one, {two}, kMachine, kCeilings));
}

TEST_CASE("a clue is one part of the setting that changed, and the time with it") {
  KernelCase here = kernel(1, 1e-3, 0);
  here.setting = "float32, d 64, entmax 1.5, top_k_block 8 of 64";
  const auto with = [&](const char* id, const char* setting, double time) {
    KernelCase k = here;
    k.case_id = id;
    k.setting = setting;
    k.seconds *= time;
    return k;
  };
  const std::vector<KernelCase> others{
      here,
      with("near", "float32, d 64, entmax 1.5, top_k_block 4 of 64", 0.95),
      with("two", "float32, d 64, entmax 1.5, top_k_block 2 of 64", 0.6),
      with("again", "float32, d 64, entmax 1.5, top_k_block 2 of 64", 0.7),
      with("both", "bfloat16, d 64, entmax 1.5, top_k_block 2 of 64", 0.1),
      with("graph", "float32, d 64, entmax 1.5, top_k_block 8 of 64, graph", 0.1),
      with("power", "float32, d 64, power 1.5, top_k_block 8 of 64", 1.25)};
  const std::vector<Clue> clues = clues_of(here, others);
  REQUIRE(clues.size() == 2);
  CHECK(clues[0].case_id == "two");
  CHECK(clues[0].words == "top_k_block 2 of 64 instead of top_k_block 8 of 64");
  CHECK(clues[0].time == doctest::Approx(0.6));
  CHECK(clues[1].words == "power 1.5 instead of entmax 1.5");
}
