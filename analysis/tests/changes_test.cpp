#include "analysis/changes.h"

#include <doctest/doctest.h>

#include "analysis/tests/example_kernels.h"

using namespace splash;
using namespace splash::analysis;
using namespace splash::analysis::testing;

namespace {

// Counts loop by loop, as a kernel runs: every query tile reads the tiles of keys and values that it sees.
KernelCase tiled(int64_t q_len, int64_t kv_len, bool causal, int64_t tile_q, int64_t tile_k,
                 int64_t window = 0) {
  KernelCase k;
  k.implementation = "a/1-tiles";
  k.setting = causal ? "bfloat16, d 64, causal" : "bfloat16, d 64";
  k.shape = {.batch = 2, .q_heads = 3, .kv_heads = 3, .q_len = q_len, .kv_len = kv_len, .head_dim = 64};
  k.dtype = Dtype::bf16;
  k.causal = causal;
  k.window = window;
  k.tile_q = tile_q;
  k.tile_k = tile_k;
  k.stages = 2;
  k.use = {.blocks = 0, .threads = static_cast<int>(2 * tile_q), .registers = 128, .shared_bytes = 0};
  for (int64_t head = 0; head < 6; ++head) {
    for (int64_t q = 0; q < q_len; q += tile_q) {
      ++k.use.blocks;
      for (int64_t i = q; i < std::min(q + tile_q, q_len); ++i)
        k.l2_bytes += 2 * 64 * 2;  // Q, and the result
      for (int64_t first = 0; first < kv_len; first += tile_k) {
        const int64_t last_query = std::min(q + tile_q, q_len) - 1;
        if (causal && first > last_query + kv_len - q_len) continue;
        if (window > 0 && first + tile_k <= q + kv_len - q_len + 1 - window) continue;
        k.l2_bytes += static_cast<double>(2 * tile_k * 64 * 2);
        k.flops += static_cast<double>(4 * tile_q * tile_k * 64);
      }
    }
  }
  k.use.shared_bytes = 2 * 64 * (tile_q + 2 * 2 * tile_k);
  count_tensors(k);
  return k;
}

Change tiles(int64_t q, int64_t k) {
  Change change;
  change.tile_q = q;
  change.tile_k = k;
  return change;
}

}  // namespace

TEST_CASE("a kernel cut otherwise counts what the loops of those tiles count") {
  for (const int64_t window : {-1, 0, 1, 40, 400}) {  // -1: not causal
    const bool causal = window >= 0;
    for (const auto& lengths : {std::pair{256, 256}, std::pair{100, 300}, std::pair{513, 513}}) {
      const int64_t q_len = lengths.first, kv_len = lengths.second;
      const KernelCase before = tiled(q_len, kv_len, causal, 64, 32, std::max<int64_t>(0, window));
      for (const int64_t q : {16, 64, 128}) {
        for (const int64_t k : {16, 32, 128}) {
          CAPTURE(window);
          CAPTURE(q_len);
          CAPTURE(q);
          CAPTURE(k);
          const KernelCase expected = tiled(q_len, kv_len, causal, q, k, before.window),
                           cut = changed(before, tiles(q, k));
          CHECK(cut.flops == doctest::Approx(expected.flops));
          CHECK(cut.l2_bytes == doctest::Approx(expected.l2_bytes));
          CHECK(cut.use.blocks == expected.use.blocks);
          CHECK(cut.use.shared_bytes == expected.use.shared_bytes);
          CHECK(cut.use.threads == expected.use.threads);
          CHECK(cut.tile_q == q);
          CHECK(cut.dram_bytes == before.dram_bytes);
        }
      }
    }
  }
}

TEST_CASE("stages cost shared memory, and nothing else that is counted") {
  const KernelCase before = tiled(256, 256, false, 64, 32);
  Change change;
  change.stages = 4;
  const KernelCase after = changed(before, change);
  CHECK(after.use.shared_bytes == 2 * 64 * (64 + 2 * 4 * 32));
  CHECK(after.l2_bytes == before.l2_bytes);
  CHECK(after.stages == 4);
}

TEST_CASE("more batch entries multiply work and blocks; blocks that stay, stay") {
  KernelCase before = tiled(256, 256, false, 64, 32);
  Change change;
  change.batch = 3;
  const KernelCase after = changed(before, change);
  CHECK(after.flops == 3 * before.flops);
  CHECK(after.use.blocks == 3 * before.use.blocks);
  CHECK(after.shape.batch == 6);
  CHECK(after.input_bytes == 3 * before.input_bytes);
  before.use.blocks = 10;
  CHECK(changed(before, change).use.blocks == 10);
  CHECK(changed(before, tiles(16, 32)).use.blocks == 10);
}

TEST_CASE("what does not follow from tiles is refused with the reason") {
  const auto asking = [](KernelCase kernel, const Change& change) {
    return message_of([&] { changed(kernel, change); });
  };
  const KernelCase whole = tiled(256, 256, false, 64, 32);
  CHECK(asking(whole, tiles(0, 32)) == "tile_q is 0; it must be at least 1");
  CHECK(why_not_cut(whole).empty());
  KernelCase kernel = whole;
  kernel.launches = 2;
  CHECK(asking(kernel, tiles(32, 32)) ==
        "a/1-tiles cannot be cut otherwise: a call of it starts several kernels");
  CHECK(asking(kernel, {}).empty());  // nothing is cut
  kernel = whole;
  kernel.use.blocks *= 2;
  CHECK(why_not_cut(kernel) == "several of its blocks share a tile of queries");
  kernel = whole;
  kernel.l2_bytes *= 1.2;
  CHECK(why_not_cut(kernel) == "the bytes that it is counted to ask of L2 are not those of its tiles");
  kernel = tiled(64, 64, false, 1, 1);
  CHECK(why_not_cut(kernel) == "it works on one query and one key at a time, not on tiles");
  // A selection reads the values of fewer keys.
  kernel = whole;
  kernel.l2_bytes *= 0.6;
  kernel.setting += ", top_k_block 8 of 64";
  CHECK(why_not_cut(kernel).empty());
}
