#include "analysis/cache/simulate.h"

#include <algorithm>
#include <random>

#include <doctest/doctest.h>

#include "analysis/tests/example_kernels.h"

using namespace splash;
using namespace splash::analysis;
using namespace splash::analysis::testing;

namespace {

// A kernel that walks over keys, as most do. It reads Q, then K and V of each tile of keys, and writes the
// result.
struct Walk {
  int64_t heads = 8, group = 2, q_len = 1024, kv_len = 1024, row_bytes = 128, tile_q = 64, tile_k = 128;
  bool causal = false;
  bool heads_first = false;  // tiles of queries vary slowest
};

int64_t tiles_of(int64_t length, int64_t tile) {
  return (length + tile - 1) / tile;
}

KernelTrace trace_of(const Walk& w, bool through_l1 = false) {
  const int64_t q_tiles = tiles_of(w.q_len, w.tile_q);
  return {.kernel = "walk",
          .blocks = w.heads * q_tiles,
          .through_l1 = through_l1,
          .run = [=](int64_t block, BlockTrace& trace) {
            const int64_t head = w.heads_first ? block % w.heads : block / q_tiles;
            const int64_t tile = w.heads_first ? q_tiles - 1 - block / w.heads : block % q_tiles;
            const int64_t first = tile * w.tile_q, rows = std::min(w.tile_q, w.q_len - first);
            const int64_t at = (head * w.q_len + first) * w.row_bytes;
            trace.read(Operand::q, at, rows * w.row_bytes);
            const int64_t end = w.causal ? first + rows + w.kv_len - w.q_len : w.kv_len;
            for (int64_t key = 0; key < end; key += w.tile_k) {
              const int64_t bytes = std::min(w.tile_k, w.kv_len - key) * w.row_bytes;
              for (const Operand operand : {Operand::k, Operand::v})
                trace.read(operand, (head / w.group * w.kv_len + key) * w.row_bytes, bytes);
              trace.next_step();
            }
            trace.write(Operand::out, at, rows * w.row_bytes);
          }};
}

int64_t tensor_bytes(const Walk& w) {
  return 2 * (w.heads * w.q_len + w.heads / w.group * w.kv_len) * w.row_bytes;
}
int64_t key_bytes(const Walk& w) {  // K and V of one head
  return 2 * w.kv_len * w.row_bytes;
}

CallTraffic simulated(const Walk& walk, int multiprocessors, int64_t at_once, const L2Size& l2) {
  const KernelTrace trace = trace_of(walk);
  return simulate({{.trace = trace, .at_once = at_once}}, multiprocessors, l2);
}

}  // namespace

TEST_CASE("a kernel's blocks ask what their loops ask, whatever runs beside them, and fetch each byte once") {
  std::mt19937 generator(17);
  const L2Size l2{.bytes = 64 << 20, .partitions = 2};
  for (int i = 0; i < 60; ++i) {
    const auto pick = [&](int64_t most) {
      return std::uniform_int_distribution<int64_t>(1, most)(generator);
    };
    Walk walk{.group = pick(3), .q_len = pick(300), .tile_q = pick(80), .tile_k = pick(80)};
    walk.heads = walk.group * pick(4);
    walk.row_bytes = 32 * pick(8);
    walk.causal = pick(2) == 1;
    walk.kv_len = walk.causal ? walk.q_len + pick(200) : pick(400);
    walk.heads_first = pick(2) == 1;
    const KernelTrace trace = trace_of(walk);
    int64_t asked = 0;
    BlockTrace block;
    for (int64_t b = 0; b < trace.blocks; ++b) {
      block.clear();
      trace.run(b, block);
      for (const auto& range : block.ranges()) asked += range.bytes * range.rows;
    }
    const CallTraffic traffic = simulated(walk, static_cast<int>(pick(5)), pick(12), l2);
    const MemoryTraffic& memory = traffic.memory;
    CHECK(traffic.asked == asked);
    CHECK(memory.asked == asked);
    CHECK(memory.dram_read + memory.dram_written + memory.unwritten == tensor_bytes(walk));
    CHECK(memory.dram_read + memory.hits == memory.asked);
  }
}

TEST_CASE("keys that L2 does not hold come from DRAM again for each block") {
  const Walk walk;  // one block at a time, head by head; each reads the head's K and V from the first key on
  const CallTraffic small = simulated(walk, 1, 1, {.bytes = key_bytes(walk) / 4, .partitions = 1});
  const auto blocks = static_cast<double>(trace_of(walk).blocks),
             of_head = static_cast<double>(key_bytes(walk));
  CHECK(static_cast<double>(small.memory.dram_read) > 0.95 * blocks * of_head);
  const CallTraffic large = simulated(walk, 1, 1, {.bytes = 4 * key_bytes(walk), .partitions = 1});
  CHECK(static_cast<double>(large.memory.dram_read) < 1.05 * static_cast<double>(tensor_bytes(walk)));
}

TEST_CASE(
    "blocks on one multiprocessor find in L1 what the other has just read, and only with ordinary loads") {
  Walk walk;
  walk.group = 1;
  const L2Size l2{.bytes = 64 << 20, .partitions = 1};
  const auto l2_bytes = [&](bool through_l1, int64_t l1_bytes, int64_t at_once) {
    const KernelTrace trace = trace_of(walk, through_l1);
    const CallTraffic traffic = simulate({{.trace = trace, .at_once = at_once, .l1_bytes = l1_bytes}}, 2, l2);
    CHECK(traffic.memory.asked + traffic.l1_hits == traffic.asked);
    return traffic.memory.asked;
  };
  const int64_t apart = l2_bytes(true, 128 << 10, 2), side_by_side = l2_bytes(true, 128 << 10, 4);
  CHECK(side_by_side < apart * 9 / 10);  // two blocks of a head on each, though not at one pace
  CHECK(l2_bytes(false, 128 << 10, 4) == apart);
  CHECK(l2_bytes(true, 0, 4) == apart);  // no L1: all of it is shared memory
}

TEST_CASE("what one kernel writes the next one finds in L2, where there is room") {
  const int64_t bytes = 1 << 20;
  const auto kernel = [&](bool write) {
    return KernelTrace{
        .kernel = write ? "write" : "read", .blocks = 16, .run = [=](int64_t block, BlockTrace& trace) {
          const int64_t part = bytes / 16;
          if (write) {
            trace.write(Operand::workspace, block * part, part);
          } else {
            trace.read(Operand::workspace, block * part, part);
          }
        }};
  };
  const KernelTrace first = kernel(true), second = kernel(false);
  const auto traffic = [&](int64_t l2_bytes) {
    return simulate({{.trace = first, .at_once = 4}, {.trace = second, .at_once = 4}}, 4,
                    {.bytes = l2_bytes, .partitions = 1});
  };
  const CallTraffic roomy = traffic(8 * bytes);
  CHECK(roomy.memory.dram_read == 0);
  CHECK(roomy.dram_apart == bytes + roomy.memory.dram_written);  // emptied between them, all is read again
  CHECK(traffic(bytes / 4).memory.dram_read > bytes / 2);
}

TEST_CASE("blocks that do not keep pace fetch keys again where L2 holds some tiles of them") {
  const Walk walk{.heads = 4, .group = 1, .q_len = 2048, .kv_len = 8192};
  const auto dram_read = [&](int64_t l2_bytes) {
    return simulated(walk, 32, 32, {.bytes = l2_bytes, .partitions = 1}).memory.dram_read;
  };
  const int64_t once = tensor_bytes(walk) - walk.heads * walk.q_len * walk.row_bytes;  // all but the result
  CHECK(dram_read(64 << 20) == once);
  CHECK(dram_read(256 << 10) > once * 3 / 2);  // if blocks kept pace, room for one tile of keys would do
}

TEST_CASE("working sets: of a block its rows and all keys, of a wave the heads that it covers") {
  Walk walk;
  const auto set = [&](int64_t at_once) {
    const KernelTrace trace = trace_of(walk);
    return working_set({.trace = trace, .at_once = at_once});
  };
  const int64_t queries = walk.tile_q * walk.row_bytes;
  CHECK(set(4).block == 2 * queries + key_bytes(walk));
  CHECK(set(4).wave_read == 4 * queries + key_bytes(walk));
  CHECK(set(4).wave == 8 * queries + key_bytes(walk));
  CHECK(set(1000).wave == tensor_bytes(walk));
  walk.heads_first = true;  // the eight running blocks belong to eight heads, which share four key heads
  CHECK(set(8).wave_read == 8 * queries + 4 * key_bytes(walk));
}

// The layer condition: a wave of `at_once` blocks reads its queries and the K and V of the heads that it
// covers.
TEST_CASE("the layer condition in closed form agrees with the simulation on both sides of the bound") {
  const L2Size l2{.bytes = 1 << 20, .partitions = 2};
  constexpr int64_t kAtOnce = 8;
  Walk walk;
  walk.group = 1;
  for (const bool heads_first : {false, true}) {
    walk.heads_first = heads_first;
    const auto holds = [&](int64_t length) {
      walk.q_len = walk.kv_len = length;
      const KernelTrace trace = trace_of(walk);
      return fits(working_set({.trace = trace, .at_once = kAtOnce}), l2);
    };
    const auto refetched = [&](int64_t length) {
      walk.q_len = walk.kv_len = length;
      return static_cast<double>(simulated(walk, 8, kAtOnce, l2).memory.dram_read) /
             (0.75 * static_cast<double>(tensor_bytes(walk)));  // without the result
    };
    int64_t longest = 64;
    while (holds(2 * longest)) longest *= 2;
    const auto heads = [&](int64_t length) {
      return heads_first ? walk.heads : tiles_of(kAtOnce, tiles_of(length, walk.tile_q));
    };
    const auto closed_form = [&](int64_t length) {
      return 2 * heads(length) * length * walk.row_bytes +
                 std::min(kAtOnce * walk.tile_q, walk.heads * length) * walk.row_bytes <=
             l2.bytes / l2.partitions;
    };
    CHECK(closed_form(longest));
    CHECK_FALSE(closed_form(2 * longest));
    CHECK(refetched(longest / 2) < 1.1);
    CHECK(refetched(4 * longest) > 1.5);
  }
}

TEST_CASE("impossible runs are refused with one sentence") {
  const KernelTrace trace = trace_of({});
  const L2Size l2{.bytes = 1 << 20, .partitions = 1};
  CHECK(message_of([&] { simulate({{.trace = trace}}, 0, l2); }) ==
        "the number of multiprocessors is 0; it must be at least 1");
  CHECK(message_of([&] { simulate({{.trace = trace, .at_once = 0}}, 4, l2); }) ==
        "the number of blocks at a time is 0; it must be at least 1");
}
