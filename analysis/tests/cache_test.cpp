#include "analysis/cache/cache.h"

#include <algorithm>
#include <random>

#include <doctest/doctest.h>

#include "analysis/cache/ladders.h"
#include "analysis/tests/example_kernels.h"

using namespace splash;
using namespace splash::analysis;
using namespace splash::analysis::testing;

namespace {

constexpr int64_t kOneSet = int64_t{kLineBytes} * Cache::kWays;

// The same walk, counted pair of tiles by pair of tiles: bytes that are asked for, and bytes of each tensor.
struct Counted {
  int64_t asked = 0, tensors = 0;
};
Counted counted(const TileWalk& walk) {
  Counted c;
  for (int64_t head = 0; head < walk.heads; ++head) {
    for (int64_t first = 0; first < walk.q_len; first += walk.tile_q) {
      const int64_t rows = std::min(walk.tile_q, walk.q_len - first), last = first + rows - 1;
      c.asked += 2 * rows * walk.row_bytes;  // Q and O
      for (int64_t key = 0; key < walk.kv_len; key += walk.tile_k) {
        if (walk.causal && key > last + walk.kv_len - walk.q_len) continue;
        c.asked += 2 * std::min(walk.tile_k, walk.kv_len - key) * walk.row_bytes;
      }
    }
  }
  c.tensors = 2 * (walk.heads * walk.q_len + walk.heads / walk.group * walk.kv_len) * walk.row_bytes;
  return c;
}

TileWalk example() {
  return {.heads = 8,
          .group = 2,
          .q_len = 1024,
          .kv_len = 1024,
          .row_bytes = 128,
          .tile_q = 64,
          .tile_k = 128,
          .causal = true,
          .order = BlockOrder::longest_first};
}

}  // namespace

TEST_CASE("sectors are fetched one by one, and are there afterwards") {
  Cache cache(kOneSet);
  CHECK(cache.use(7, 0b0011, false).missing == 0b0011);
  CHECK(cache.use(7, 0b0111, false).missing == 0b0100);
  CHECK(cache.use(7, 0b0111, false).missing == 0);
}

TEST_CASE("the line used longest ago goes first, and takes its written sectors down") {
  Cache cache(kOneSet);
  for (uint64_t line = 0; line < Cache::kWays; ++line) cache.use(line, kAllSectors, line == 1);
  cache.use(0, kAllSectors, false);  // now 1 is the oldest
  CHECK(cache.unwritten_sectors() == 4);
  const Cache::Outcome outcome = cache.use(100, 0b1000, false);
  CHECK(outcome.missing == 0b1000);
  CHECK(outcome.written_out == kAllSectors);
  CHECK(cache.unwritten_sectors() == 0);
  CHECK(cache.use(0, kAllSectors, false).missing == 0);
  CHECK(cache.use(1, kAllSectors, false).missing == kAllSectors);
}

TEST_CASE("lines spread over the sets: what fits half the cache stays, nearly all of it") {
  Cache cache(1 << 20);
  const uint64_t lines = (1 << 20) / kLineBytes / 2;
  for (uint64_t line = 0; line < lines; ++line) cache.use(line, kAllSectors, false);
  uint64_t missing = 0;
  for (uint64_t line = 0; line < lines; ++line) missing += cache.use(line, kAllSectors, false).missing != 0;
  CHECK(missing < lines / 50);
}

TEST_CASE("reading more than the cache holds, again and again in one order, hits hardly ever") {
  Cache cache(1 << 20);
  const uint64_t lines = 2 * (1 << 20) / kLineBytes;
  uint64_t missing = 0;
  for (int pass = 0; pass < 3; ++pass) {
    for (uint64_t line = 0; line < lines; ++line) missing += cache.use(line, kAllSectors, false).missing != 0;
  }
  CHECK(missing > 3 * lines * 95 / 100);
}

TEST_CASE("memory is asked in whole sectors, wherever a range begins and ends") {
  MemorySystem memory({.bytes = 1 << 20, .partitions = 1});
  memory.use(0, 40, 8, false);
  memory.use(0, 120, 16, false);
  CHECK(memory.traffic().asked == 3 * kSectorBytes);
  CHECK(memory.traffic().dram_read == 3 * kSectorBytes);
  memory.use(0, 0, 256, false);
  CHECK(memory.traffic().hits == 3 * kSectorBytes);
  CHECK(memory.traffic().dram_read == 8 * kSectorBytes);
}

TEST_CASE("what both partitions read comes from DRAM once, and takes room twice") {
  const int64_t bytes = 1 << 20;
  MemorySystem memory({.bytes = 2 * bytes, .partitions = 2});
  for (const int partition : {0, 1}) memory.use(partition, 0, bytes / 4, false);
  CHECK(memory.traffic().dram_read == bytes / 4);
  CHECK(memory.traffic().hits == bytes / 4);
  // A cyclic sweep of 1.5 times a partition: all of it fits L2, but not twice.
  const auto misses = [&](bool both) {
    MemorySystem swept({.bytes = 2 * bytes, .partitions = 2});
    for (int pass = 0; pass < 4; ++pass) {
      for (int64_t at = 0; at < 3 * bytes / 2; at += 4096) {
        swept.use(0, at, 4096, false);
        if (both) swept.use(1, at, 4096, false);
      }
    }
    return swept.traffic().dram_read;
  };
  CHECK(4 * misses(true) > 5 * misses(false));
}

TEST_CASE("writes cost DRAM when they are evicted, reading nothing") {
  MemorySystem memory({.bytes = 1 << 20, .partitions = 1});
  memory.use(0, 0, 4 << 20, true);
  const MemoryTraffic traffic = memory.traffic();
  CHECK(traffic.dram_read == 0);
  CHECK(traffic.dram_written + traffic.unwritten == 4 << 20);
  CHECK(traffic.unwritten <= 1 << 20);
}

TEST_CASE("a walk asks what its loops ask, whatever the lengths, the mask and the order") {
  std::mt19937 generator(17);
  const L2Size l2{.bytes = 64 << 20, .partitions = 2};
  for (int i = 0; i < 60; ++i) {
    const auto pick = [&](int64_t most) {
      return std::uniform_int_distribution<int64_t>(1, most)(generator);
    };
    const int64_t group = pick(3), q_len = pick(300);
    const bool causal = pick(2) == 1;
    const TileWalk walk{.heads = group * pick(4),
                        .group = group,
                        .q_len = q_len,
                        .kv_len = causal ? q_len + pick(200) : pick(400),
                        .row_bytes = 32 * pick(8),
                        .tile_q = pick(80),
                        .tile_k = pick(80),
                        .causal = causal,
                        .order = pick(2) == 1 ? BlockOrder::by_head : BlockOrder::longest_first};
    const MemoryTraffic traffic = simulate(walk, static_cast<int>(pick(5)), static_cast<int>(pick(3)), l2);
    const Counted c = counted(walk);
    CHECK(traffic.asked == c.asked);
    // All fits: each byte comes and goes once.
    CHECK(traffic.dram_read + traffic.dram_written + traffic.unwritten == c.tensors);
    CHECK(traffic.dram_read + traffic.hits == traffic.asked);
  }
}

TEST_CASE("keys that L2 does not hold come from DRAM again for each wave") {
  // One block at a time, by head: each block reads the head's K and V from the first key on.
  TileWalk walk = example();
  walk.causal = false;
  walk.order = BlockOrder::by_head;
  const int64_t of_head = 2 * walk.kv_len * walk.row_bytes;
  const MemoryTraffic small = simulate(walk, 1, 1, {.bytes = of_head / 4, .partitions = 1});
  CHECK(static_cast<double>(small.dram_read) > 0.95 * static_cast<double>(walk.blocks() * of_head));
  const MemoryTraffic large = simulate(walk, 1, 1, {.bytes = 4 * of_head, .partitions = 1});
  CHECK(static_cast<double>(large.dram_read) < 1.05 * static_cast<double>(counted(walk).tensors));
}

TEST_CASE("layer conditions agree with the simulation on both sides of the bound") {
  TileWalk walk = example();
  walk.group = 1;
  walk.causal = false;
  const L2Size l2{.bytes = 1 << 20, .partitions = 2};
  for (const BlockOrder order : {BlockOrder::by_head, BlockOrder::longest_first}) {
    walk.order = order;
    const int64_t longest = longest_in_l2(walk, 8, l2);
    const auto refetched = [&](int64_t length) {
      TileWalk sized = walk;
      sized.q_len = sized.kv_len = length;
      return static_cast<double>(simulate(sized, 8, 1, l2).dram_read) /
             (0.75 * static_cast<double>(counted(sized).tensors));  // without O
    };
    REQUIRE(longest >= 128);
    CHECK(refetched(longest / 2) < 1.1);
    CHECK(refetched(4 * longest) > 1.5);
  }
  CHECK(working_set(walk, 2) == (64 + 4 * 128) * 128);
}

TEST_CASE("impossible caches and walks are refused with one sentence") {
  CHECK(message_of([] { Cache cache(100); }) ==
        "a cache of 100 bytes; allowed: at least 2048, one set of 16 lines");
  CHECK(message_of([] { MemorySystem memory({.bytes = 1 << 20, .partitions = 3}); }) ==
        "an L2 of 3 partitions; allowed: 1 or 2");
  TileWalk walk = example();
  walk.tile_k = 0;
  CHECK(message_of([&] { walk.validate(); }) == "tile_k is 0; it must be at least 1");
  walk = example();
  walk.group = 3;
  CHECK(message_of([&] { walk.validate(); }) == "8 heads in groups of 3; the group must divide them");
  CHECK(message_of([] { simulate(example(), 0, 1, {.bytes = 1 << 20, .partitions = 1}); }) ==
        "0 multiprocessors with 1 blocks each; both must be at least 1");
}

TEST_CASE("only kernels whose blocks walk over keys are simulated") {
  KernelCase kernel;
  kernel.implementation = "wmma/10-warp-specialised";
  kernel.shape = {2, 8, 4, 512, 512, 64};
  kernel.dtype = Dtype::bf16;
  kernel.causal = true;
  kernel.tile_q = 192;
  kernel.tile_k = 128;
  const auto walk = walk_of(kernel);
  REQUIRE(walk.has_value());
  CHECK(walk->heads == 16);
  CHECK(walk->group == 2);
  CHECK(walk->row_bytes == 128);
  CHECK(walk->order == BlockOrder::longest_first);
  kernel.implementation = "wmma/8-cp-async";
  CHECK(walk_of(kernel)->order == BlockOrder::by_head);
  kernel.implementation = "kascade/6-work-queue";
  CHECK_FALSE(walk_of(kernel).has_value());
}
