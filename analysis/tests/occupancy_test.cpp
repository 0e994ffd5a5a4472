#include "analysis/occupancy.h"

#include <doctest/doctest.h>

#include "core/error.h"

using namespace splash;
using namespace splash::analysis;

namespace {

const Multiprocessors kH200{
    .count = 132, .warps = 64, .blocks = 32, .registers = 65536, .shared_bytes = 233472};

}  // namespace

// Expected values are CUDA's occupancy calculator, by hand. (Those of every recorded kernel: analyze_test.)
TEST_CASE("each resource can be the one that limits a kernel") {
  const auto check = [](int threads, int registers, int64_t shared, int blocks, OccupancyLimit limit) {
    const Occupancy got = occupancy_of(
        kH200, {.blocks = 1, .threads = threads, .registers = registers, .shared_bytes = shared});
    CAPTURE(threads);
    CAPTURE(registers);
    CAPTURE(shared);
    CHECK(got.blocks == blocks);
    CHECK(got.limit == limit);
  };
  check(256, 32, 0, 8, OccupancyLimit::warps);
  check(1024, 32, 0, 2, OccupancyLimit::warps);
  check(32, 16, 0, 32, OccupancyLimit::blocks);
  check(256, 128, 0, 2, OccupancyLimit::registers);
  check(256, 129, 0, 1, OccupancyLimit::registers);  // 136 registers per thread are allocated
  check(32, 255, 0, 8, OccupancyLimit::registers);   // a quarter's 16384 registers hold 2 warps of 8192
  check(96, 168, 0, 4, OccupancyLimit::registers);   // a quarter holds three warps of 5376
  check(128, 32, 115712, 2, OccupancyLimit::shared_memory);  // 113 KB and 1 KB kept, twice
  check(128, 32, 115713, 1, OccupancyLimit::shared_memory);
  check(128, 32, 232448, 1, OccupancyLimit::shared_memory);  // 227 KB: the most a block may have
  check(128, 32, 232449, 0, OccupancyLimit::shared_memory);
}

TEST_CASE("waves count places on all multiprocessors, and the last one's share of them") {
  const auto of = [](int64_t blocks) {
    return occupancy_of(kH200,
                        {.blocks = blocks, .threads = 256, .registers = 128, .shared_bytes = 0});  // 2 each
  };
  CHECK(of(264).waves == 1);
  CHECK(of(264).last_wave == 1);
  CHECK(of(264).wave_yield == 1);
  CHECK(of(265).last_wave == doctest::Approx(1.0 / 264));
  CHECK(of(265).wave_yield == doctest::Approx(265.0 / 528));
  CHECK(of(66).waves == 0.25);
  CHECK(of(66).wave_yield == 0.25);
  CHECK(of(1).warps_share == 0.25);  // 16 of 64 warps, as if the launch filled a multiprocessor
}

TEST_CASE("what is not positive is refused in one sentence") {
  CHECK_THROWS_WITH_AS(occupancy_of(kH200, {.blocks = 0}),
                       "occupancy: the number of blocks is 0; it must be positive", InvalidArgument);
  CHECK_THROWS_AS(occupancy_of(kH200, {.blocks = 1, .threads = 0}), InvalidArgument);
  CHECK_THROWS_AS(occupancy_of({}, {}), InvalidArgument);
  CHECK_THROWS_AS(occupancy_of(kH200, {.blocks = 1, .threads = 32, .registers = -1}), InvalidArgument);
}
