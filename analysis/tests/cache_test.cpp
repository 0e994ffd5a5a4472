#include "analysis/cache/cache.h"

#include <chrono>

#include <doctest/doctest.h>

#include "analysis/tests/example_kernels.h"

using namespace splash;
using namespace splash::analysis;
using namespace splash::analysis::testing;

namespace {

constexpr int64_t kOneSet = int64_t{kLineBytes} * Cache::kWays;

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
  cache.use(0, kAllSectors, false);  // makes line 1 the least recently used
  CHECK(cache.unwritten_sectors() == 4);
  const Cache::Outcome outcome = cache.use(100, 0b1000, false);
  CHECK(outcome.missing == 0b1000);
  CHECK(outcome.written_out == 4);
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
  // A cyclic sweep over 1.5 times a partition. L2 as a whole holds it once, but not twice.
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
  CHECK(traffic.unwritten <= (1 << 20) * Cache::kWrittenWays / Cache::kWays);
}

TEST_CASE("of many written lines the oldest goes to memory and stays in the cache") {
  Cache cache(kOneSet);
  for (uint64_t line = 0; line < Cache::kWrittenWays; ++line)
    CHECK(cache.use(line, 0b0011, true).written_out == 0);
  CHECK(cache.use(1, 0b0100, true).written_out == 0);  // the line is written already
  CHECK(cache.use(0, 0b0001, false).missing == 0);     // makes line 2 the least recently used
  CHECK(cache.use(50, 0b1000, true).written_out == 2);
  CHECK(cache.use(2, 0b0011, false).missing == 0);
  CHECK(cache.unwritten_sectors() == 2 + 3 + 1);
}

TEST_CASE("impossible caches are refused with one sentence") {
  CHECK(message_of([] { Cache cache(100); }) ==
        "a cache of 100 bytes; allowed: at least 2048, one set of 16 lines");
  CHECK(message_of([] { MemorySystem memory({.bytes = 1 << 20, .partitions = 3}); }) ==
        "an L2 of 3 partitions; allowed: 1 or 2");
}

TEST_CASE("the simulation keeps a pace of millions of lines a second") {
  MemorySystem memory({.bytes = 60 << 20, .partitions = 2});
  const int64_t bytes = int64_t{4} << 20;
  const auto begin = std::chrono::steady_clock::now();
  int64_t lines = 0;
  // Sixteen streams, one of which all read: hits, misses and evictions.
  for (int64_t pass = 0; pass < 8; ++pass) {
    for (int64_t at = 0; at < bytes; at += 8192) {
      for (int64_t stream = 0; stream < 16; ++stream) {
        memory.use(static_cast<int>(stream % 2), static_cast<uint64_t>(stream / 2 * pass * bytes + at), 8192,
                   false);
        lines += 8192 / kLineBytes;
      }
    }
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const double rate = static_cast<double>(lines) / seconds;
  MESSAGE("accesses a second: " << rate);
  CHECK(rate > 1e6);  // far below an idle core's rate, as other processes may compute meanwhile
}
