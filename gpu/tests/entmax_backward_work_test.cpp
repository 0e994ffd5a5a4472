// The counted work of backward's kernels against counts written out here. Needs no GPU.

#include <algorithm>

#include <doctest/doctest.h>

#include "core/error.h"
#include "gpu/entmax/backward/work.h"
#include "gpu/tests/h200.h"

namespace splash::gpu::entmax {
namespace {

AttentionSpec grouped_spec() {
  AttentionSpec spec;
  spec.shape = {.batch = 2, .q_heads = 8, .kv_heads = 4, .q_len = 1000, .kv_len = 1500, .head_dim = 128};
  return spec;
}

const BackwardKernel& named(const std::vector<BackwardKernel>& kernels, const std::string& name) {
  const auto found =
      std::find_if(kernels.begin(), kernels.end(), [&](const auto& k) { return k.launch.name == name; });
  REQUIRE(found != kernels.end());
  return *found;
}

}  // namespace

TEST_CASE("backward's FLOPs are four products of the support, and its bytes follow it") {
  const AttentionSpec spec = grouped_spec();
  const int64_t entries = 16 * 1000 * 7, vector = 256;  // bytes of a row of bfloat16
  const DeviceInfo device = testing::h200();
  const auto kernels = backward_kernels(spec, Dtype::bf16, entries, device, false);
  double flops = 0, dram = 0;
  for (const BackwardKernel& kernel : kernels) {
    CAPTURE(kernel.launch.name);
    CHECK(kernel.launch.name == kernel.work.kernel);
    CHECK(kernel.launch.blocks >= 1);
    CHECK(kernel.launch.threads % 32 == 0);
    CHECK(kernel.work.dram_bytes <= kernel.work.l2_bytes);
    flops += kernel.work.executed_flops;
    dram += kernel.work.dram_bytes;
  }
  CHECK(kernels.size() == 4);
  CHECK(flops == backward_flops(112000, 128));
  CHECK(flops == 4.0 * 2 * 112000 * 128);
  const double least = 3.0 * 16000 * vector + 4.0 * 12000 * vector;  // dO, dQ and Q; K, V, dK and dV
  CHECK(dram > least);
  CHECK(dram < least + 16000.0 * vector + 3 * 8.0 * 112000 + 24.0 * 16000 * 2);  // and dO again, the store
  const BackwardKernel& rows = named(kernels, "row_gradients");
  // 32 tiles of 32 rows per head, 16 lanes per row, 4 warps per block; and blocks for long rows.
  CHECK(rows.launch.blocks == 528 + 16 * 32 * 16 / 4);
  CHECK(rows.work.l2_bytes > 112000.0 * 2 * vector);
  const auto twice = backward_kernels(spec, Dtype::bf16, 2 * entries, device, false);
  CHECK(named(twice, "sum_columns").work.executed_flops ==
        2 * named(kernels, "sum_columns").work.executed_flops);
}

TEST_CASE(
    "kernels for dense rows are launched where the path asks for them, blocks for long rows by the store") {
  AttentionSpec spec = grouped_spec();
  const DeviceInfo device = testing::h200();
  CHECK(backward_kernels(spec, Dtype::f16, 0, device, true).size() == 7);
  CHECK(named(backward_kernels(spec, Dtype::f16, 0, device, true), "dense_keys").launch.blocks == 8 * 12);
  spec.shape = {.batch = 1, .q_heads = 1, .kv_heads = 1, .q_len = 8, .kv_len = 8, .head_dim = 8};
  const auto kernels = backward_kernels(spec, Dtype::f32, 8, device, false);  // room for 128 entries
  CHECK(kernels.size() == 4);
  CHECK(named(kernels, "row_gradients").launch.blocks == 2 + 2);
  CHECK_THROWS_WITH_AS(backward_kernels(spec, Dtype::f32, -1, device, false),
                       "the support has -1 entries; allowed: 0 or more", InvalidArgument);
}

// From ncu, metrics launch__grid_size and launch__block_size, on an H200; the dense ones on an H100, which
// has as many multiprocessors.
TEST_CASE("grids are those that a profiler saw") {
  AttentionSpec spec;
  spec.shape = {.batch = 1, .q_heads = 16, .kv_heads = 16, .q_len = 16384, .kv_len = 16384, .head_dim = 64};
  struct Grid {
    const char* kernel;
    int64_t blocks;
    int threads;
  };
  const std::vector<Grid> seen{
      {"count_entries", 256, 1024}, {"place_keys_and_rows", 1280, 256}, {"row_gradients", 16912, 128},
      {"sum_columns", 4096, 128},   {"gather_rows_of_tiles", 512, 256}, {"dense_queries", 132, 256},
      {"dense_keys", 132, 256}};
  const auto kernels = backward_kernels(spec, Dtype::bf16, 1799727, testing::h200(), true);
  REQUIRE(kernels.size() == seen.size());
  for (const Grid& grid : seen) {
    CAPTURE(grid.kernel);
    CHECK(named(kernels, grid.kernel).launch.blocks == grid.blocks);
    CHECK(named(kernels, grid.kernel).launch.threads == grid.threads);
  }
}

}  // namespace splash::gpu::entmax
