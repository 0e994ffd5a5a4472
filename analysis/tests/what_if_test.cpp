#include "analysis/what_if.h"

#include <doctest/doctest.h>

#include "analysis/tests/example_kernels.h"

using namespace splash;
using namespace splash::analysis;
using namespace splash::report;
using namespace splash::analysis::testing;

namespace {

std::vector<Ceiling> ceilings() {
  return {ceiling("dram copy", "", 4e12),  ceiling("dram read", "", 4e12),
          ceiling("l2 read", "", 1e13),    ceiling("launch", "", 3e-6),
          ceiling("graph node", "", 1e-6), ceiling("fma", "float32", 5e13),
          ceiling("tensor", "tf32", 4e14), ceiling("tensor", "bfloat16", 8e14)};
}

const MeasuredGpu kGpu{kMachine, ceilings()};

// One launch, then full waves that take `factor` times the kernel's floors.
KernelCase kernel(const char* name, int64_t waves, double factor) {
  KernelCase k;
  k.case_id = std::string(name) + " " + std::to_string(waves);
  k.implementation = name;
  k.shape.q_len = k.shape.kv_len = 100 * waves;
  k.unit = "bfloat16";
  const auto work = static_cast<double>(waves);
  k.flops = 8e9 * work;       // 10 us
  k.l2_bytes = 2e8 * work;    // 20 us
  k.dram_bytes = 4e7 * work;  // 10 us
  k.use = {.blocks = 200 * waves, .threads = 1024, .registers = 32, .shared_bytes = 1024};
  k.seconds = 3e-6 + factor * 40e-6 * work;
  return k;
}

}  // namespace

TEST_CASE("a kernel that always loses the same is predicted exactly, with an interval of no width") {
  std::vector<KernelCase> measured;
  for (const int64_t waves : {1, 2, 3, 5, 8, 13, 21, 34, 55}) measured.push_back(kernel("a/1", waves, 2.5));
  const Prediction p = Predictor(measured, kGpu).predict(kernel("a/1", 100, 1));
  CHECK(p.seconds == doctest::Approx(3e-6 + 2.5 * 4000e-6));
  CHECK(p.low == doctest::Approx(p.seconds));
  CHECK(p.high == doctest::Approx(p.seconds));
  CHECK(p.factor == doctest::Approx(2.5));
  CHECK(p.from == "a/1 55");
  CHECK(p.held_out == 9);
}

TEST_CASE("what it loses is taken from the nearest case of the kernel, not from others") {
  std::vector<KernelCase> measured{kernel("a/1", 1, 8), kernel("a/1", 20, 2), kernel("a/1", 400, 1.5),
                                   kernel("b/1", 30, 9)};
  CHECK(Predictor(measured, kGpu).predict(kernel("a/1", 30, 1)).factor == doctest::Approx(2));
  CHECK(Predictor(measured, kGpu).predict(kernel("a/1", 2, 1)).factor == doctest::Approx(8));
}

TEST_CASE("broad rows take longer, up to computing all pairs once more, and tell most of rows as broad") {
  KernelCase narrow = kernel("a/1", 10, 2), broad = narrow;
  narrow.shape = broad.shape = {
      .batch = 1, .q_heads = 1, .kv_heads = 1, .q_len = 1000000, .kv_len = 1000, .head_dim = 50};
  narrow.dtype = broad.dtype = Dtype::bf16;
  narrow.useful_flops = broad.useful_flops = narrow.flops;
  narrow.support = 1;   // 200 MB of keys and values more: 20 us, beside 400 of floors
  broad.support = 1e6;  // not 20 s: 100 us of products and 200 of L2 once more
  const Predictor predictor({narrow}, kGpu);
  const double factor = (narrow.seconds - 3e-6) / 420e-6;
  CHECK(predictor.predict(narrow).seconds == doctest::Approx(narrow.seconds));
  CHECK(predictor.predict(broad).seconds == doctest::Approx(3e-6 + factor * 700e-6));

  broad.seconds = 3e-6 + 3 * 700e-6;
  broad.case_id = "broad";
  KernelCase asked = broad;
  asked.support = 1e5;
  CHECK(Predictor({narrow, broad}, kGpu).predict(asked).from == "broad");
  asked.support = 2;
  CHECK(Predictor({narrow, broad}, kGpu).predict(asked).from == narrow.case_id);
  broad.seconds = 1e-6;  // as if nothing were left to do
  asked.support = 2e6;
  CHECK(Predictor({narrow, broad}, kGpu).predict(asked).seconds >= narrow.seconds);
}

TEST_CASE("the interval is that of what was held out, of all kernels where one has few cases") {
  // The cases of a predict each other, with 1.5 and 1 / 1.5 of the measured times. b has no other problem to
  // learn from.
  const std::vector<KernelCase> measured{kernel("a/1", 10, 2), kernel("a/1", 11, 3), kernel("b/1", 30, 9)};
  const std::vector<double> ratios = Predictor(measured, kGpu).held_out_ratios();
  REQUIRE(ratios.size() == 2);
  CHECK(ratios[0] == doctest::Approx(2.0 / 3).epsilon(0.01));
  CHECK(ratios[1] == doctest::Approx(1.5).epsilon(0.01));
  const Prediction p = Predictor(measured, kGpu).predict(kernel("b/1", 40, 1));
  CHECK(p.held_out == 2);
  CHECK(p.low < 0.8 * p.seconds);
  CHECK(p.high > 1.3 * p.seconds);
}

TEST_CASE("a last wave that is nearly empty costs as much as a full one") {
  const std::vector<KernelCase> measured{kernel("a/1", 10, 2)};
  KernelCase asked = kernel("a/1", 10, 1);
  asked.use.blocks += 1;
  const Prediction p = Predictor(measured, kGpu).predict(asked);
  CHECK((p.seconds - 3e-6) / (measured[0].seconds - 3e-6) == doctest::Approx(1.1).epsilon(0.01));
}

TEST_CASE("faster ceilings elsewhere shorten the floors, and launches stay") {
  const std::vector<KernelCase> measured{kernel("a/1", 10, 2)};
  std::vector<Ceiling> there = ceilings();
  for (Ceiling& ceiling : there) {
    if (ceiling.name != "launch" && ceiling.name != "graph node") ceiling.measured *= 2;
  }
  const Prediction p = Predictor(measured, kGpu).predict(kernel("a/1", 10, 1), {kMachine, there});
  CHECK(p.seconds == doctest::Approx(3e-6 + 400e-6));
}

TEST_CASE("cut otherwise, floors follow the tiles and the rest of the time follows the products") {
  KernelCase measured = kernel("a/1", 10, 2);  // 100 us of products, 200 of L2, 100 of DRAM, 400 of the rest
  KernelCase cut = measured;
  cut.l2_bytes /= 2;
  CHECK(Predictor({measured}, kGpu).predict(cut, &measured).seconds == doctest::Approx(3e-6 + 700e-6));
  cut.flops *= 2;
  CHECK(Predictor({measured}, kGpu).predict(cut, &measured).seconds == doctest::Approx(3e-6 + 1200e-6));
  // Half of the multiprocessors have no blocks: 50 blocks now, 100 before.
  measured.use.blocks = 100;
  cut = measured;
  cut.use.blocks = 50;
  CHECK(Predictor({measured}, kGpu).predict(cut, &measured).seconds == doctest::Approx(3e-6 + 1600e-6));
  // Faster than the sum of its floors: the floors then share the time.
  measured = kernel("a/1", 10, 0.5);
  cut = measured;
  cut.l2_bytes /= 2;
  CHECK(Predictor({measured}, kGpu).predict(cut, &measured).seconds == doctest::Approx(3e-6 + 150e-6));
}

TEST_CASE("how far cuts are off is learnt from neighbouring rungs that differ in their tiles") {
  // One head of 12800 queries: 200 blocks of 64, or 100 of 128, which read keys and values half as often.
  const auto rung = [](const char* name, int64_t tile_q, double seconds) {
    KernelCase k;
    k.case_id = k.implementation = name;
    k.problem = k.setting = "bfloat16, d 64";
    k.shape = {.batch = 1, .q_heads = 1, .kv_heads = 1, .q_len = 12800, .kv_len = 12800, .head_dim = 64};
    k.dtype = Dtype::bf16;
    k.unit = "bfloat16";
    k.tile_q = tile_q;
    k.tile_k = 64;
    const int64_t blocks = 12800 / tile_q;
    const auto tiles = static_cast<double>(blocks);
    k.flops = 4.0 * 12800 * 12800 * 64;
    k.l2_bytes = 2.0 * 12800 * 64 * 2 + tiles * 2 * 12800 * 64 * 2;
    k.use = {.blocks = blocks, .threads = 128, .registers = 64, .shared_bytes = 1024};
    k.seconds = seconds;
    return k;
  };
  const KernelCase small = rung("a/1-small", 64, 1e-3), large = rung("a/2-large", 128, 1e-3);
  const std::vector<double> ratios = Predictor({small, large}, kGpu).recut_ratios();
  REQUIRE(ratios.size() == 2);
  const double saved = (small.l2_bytes - large.l2_bytes) / 1e13;
  CHECK(ratios[0] == doctest::Approx(1e-3 / (1e-3 - saved)));
  CHECK(ratios[1] == doctest::Approx(1e-3 / (1e-3 + saved)));
  KernelCase asked = rung("a/1-small", 32, 1);
  const Prediction p = Predictor({small, large}, kGpu).predict(asked, &small);
  CHECK(p.held_out == 2);
  CHECK(p.low < p.seconds);
  CHECK(p.seconds < p.high);
  // Rungs of two ladders, rungs far apart and rungs with other numbers of threads are no comparison.
  CHECK(Predictor({small, rung("b/2-large", 128, 1)}, kGpu).recut_ratios().empty());
  CHECK(Predictor({small, rung("a/3-large", 128, 1)}, kGpu).recut_ratios().empty());
  KernelCase wider = large;
  wider.use.threads = 384;
  CHECK(Predictor({small, wider}, kGpu).recut_ratios().empty());
}

TEST_CASE("of cases that are as near the one with as many blocks is taken") {
  KernelCase few = kernel("a/1", 10, 2), many = kernel("a/1", 10, 3);
  few.use.blocks = 1000;
  many.case_id = "many";
  KernelCase asked = many;
  asked.use.blocks = 1999;
  CHECK(Predictor({few, many}, kGpu).predict(asked).from == "many");
}

TEST_CASE("more work is never predicted faster than less of it was measured, or is predicted") {
  // One batch entry loses much, sixteen lose little. Near sixteen, the factor of sixteen applies.
  bool blocks_stay = false;
  SUBCASE("a block a tile of queries") {}
  SUBCASE("blocks that take tile after tile") {
    blocks_stay = true;
  }
  const auto batch = [&](int64_t entries, double factor) {
    KernelCase k = kernel("a/1", entries, factor);
    k.case_id += " entries";
    k.shape = {.batch = entries, .q_heads = 8, .kv_heads = 8, .q_len = 100, .kv_len = 100, .head_dim = 64};
    k.tile_q = 4;
    if (blocks_stay) k.use.blocks = 132;
    return k;
  };
  const std::vector<KernelCase> measured{batch(1, 30), batch(16, 1.1)};
  const Predictor predictor(measured, kGpu);
  double before = 0;
  for (int64_t entries = 1; entries <= 40; ++entries) {
    CAPTURE(entries);
    const double seconds = predictor.predict(batch(entries, 1)).seconds;
    CHECK(seconds >= before);
    CHECK(seconds >= 0.999 * measured[0].seconds);
    before = seconds;
  }
}

TEST_CASE("fewer batch entries take a part of each launch's products, whatever their unit") {
  const auto batch = [](int64_t entries, double factor) {
    KernelCase k = kernel("a/1", entries, 1);
    k.shape = {.batch = entries, .q_heads = 8, .kv_heads = 8, .q_len = 100, .kv_len = 100, .head_dim = 64};
    k.tile_q = 4;
    k.launches = 2;
    k.all = {{.kernel = "multiply", .use = k.use, .flops = k.flops, .unit = "float32"},
             {.kernel = "combine", .use = k.use}};
    // A launch and a graph node, then 160 us of products, 20 of L2 and 10 of DRAM an entry.
    k.seconds = 4e-6 + factor * 190e-6 * static_cast<double>(entries);
    return k;
  };
  // Up to four entries the factor of one applies: 2 * 4 entries' floors are less than those of 16.
  const Predictor predictor({batch(1, 2), batch(16, 1)}, kGpu);
  CHECK(predictor.predict(batch(16, 1)).seconds == doctest::Approx(4e-6 + 16 * 190e-6));
}

TEST_CASE("what was measured is answered by its measurement, with the median's interval") {
  // One entry takes longer than two, against the rule that more work never takes less time.
  KernelCase two = kernel("a/1", 2, 2);
  two.shape.batch = 2;
  two.seconds_low = 0.9 * two.seconds;
  two.seconds_high = 1.2 * two.seconds;
  KernelCase one = two;
  one.case_id = "one";
  one.shape.batch = 1;
  one.seconds = 3 * two.seconds;
  CHECK(Predictor({one, two}, kGpu).predict(two).seconds > 2.9 * two.seconds);
  const Prediction p = as_measured(two, kGpu);
  CHECK(p.measured);
  CHECK(p.seconds == two.seconds);
  CHECK(p.low == two.seconds_low);
  CHECK(p.high == two.seconds_high);
  CHECK(p.factor == doctest::Approx(2));
  CHECK(as_measured(one, kGpu).from == "one");
  KernelCase old = one;  // a report without intervals
  old.seconds_low = old.seconds_high = kMissing;
  CHECK(as_measured(old, kGpu).high == old.seconds);
}

TEST_CASE("what cannot be predicted is refused with one sentence") {
  const std::vector<KernelCase> measured{kernel("a/1", 10, 2)};
  const auto asking = [&](const KernelCase& asked) {
    return message_of([&] { Predictor(measured, kGpu).predict(asked); });
  };
  CHECK(asking(kernel("c/1", 10, 1)) == "the report has no case of c/1 to predict from");
  KernelCase large = kernel("a/1", 10, 1);
  large.use.shared_bytes = 300000;
  CHECK(asking(large) == "not one block of a/1 fits a multiprocessor: shared memory bounds it");
}
