// Repeats the grids that places.cu, rows.cu, columns.cu and dense.cpp launch, and counts their work.

#include "gpu/entmax/backward/work.h"

#include <algorithm>

#include "core/error.h"
#include "core/round.h"
#include "gpu/entmax/backward/problem.h"

namespace splash::gpu::entmax {
namespace {

using backward::kColumnTile, backward::kCountKeys, backward::kDenseTile, backward::kKeyBlock,
    backward::kLongRow, backward::kMostBlocks, backward::kMostLongRowBlocks, backward::kRowTile,
    backward::RowSlices, backward::RowSlot;

constexpr int64_t kPlaceThreads = 256, kCountThreads = 1024, kRowThreads = 128, kColumnThreads = 128,
                  kDenseThreads = 256, kDenseRows = 128, kMostGathering = 512;
constexpr int64_t kPlace = 4, kRank = 2, kOffset = 8, kCount = 4, kColumn = 4, kExcess = 4;  // bytes

struct BackwardSizes {
  BackwardSizes(const AttentionSpec& spec, Dtype dtype, int64_t of_support)
      : shape(spec.shape),
        rows(shape.rows()),
        keys(shape.batch * shape.kv_heads * shape.kv_len),
        key_heads(shape.batch * shape.kv_heads),
        entries(of_support),
        vector_bytes(shape.head_dim * bytes_of(dtype)),
        entry(backward::entry_bytes(dtype)),
        row_tiles(shape.batch * shape.q_heads * ceil_div(shape.q_len, kRowTile)),
        lanes(shape.head_dim <= 64    ? 8
              : shape.head_dim <= 128 ? 16
                                      : 32) {
    // EntmaxAttention's first capacity, or what was needed and an eighth more.
    capacity = entries <= 16 * rows ? 16 * rows : entries + entries / 8;
  }
  AttentionShape shape;
  int64_t rows, keys, key_heads, entries, capacity = 0, vector_bytes, entry, row_tiles, lanes;
};

// bytes: all that the blocks load and store; tensors: those of them that DRAM must deliver or take.
BackwardKernel kernel_of(const char* name, int64_t blocks, int64_t threads, double flops = 0,
                         int64_t bytes = 0, int64_t tensors = 0) {
  BackwardKernel kernel;
  kernel.launch.name = kernel.work.kernel = name;
  kernel.launch.blocks = std::max<int64_t>(1, blocks);
  kernel.launch.threads = static_cast<int>(threads);
  kernel.work.executed_flops = flops;
  kernel.work.l2_bytes = static_cast<double>(bytes);
  kernel.work.dram_bytes = static_cast<double>(tensors);
  return kernel;
}

void add_places(const BackwardSizes& s, std::vector<BackwardKernel>& kernels) {
  const int64_t slices = RowSlices(s.shape).count, windows = ceil_div(s.shape.kv_len, kCountKeys),
                places = slices * s.keys * kPlace, row_facts = s.rows * (kOffset + kCount),
                columns = s.entries * kColumn, ranks = s.entries * kRank,
                slots = s.row_tiles * kRowTile * static_cast<int64_t>(sizeof(RowSlot));
  kernels.push_back(kernel_of("count_entries", s.key_heads * windows * slices, kCountThreads, 0,
                              row_facts + columns + ranks + places, row_facts + columns));
  const int64_t key_blocks = ceil_div(s.keys, kKeyBlock),
                row_blocks = ceil_div(s.row_tiles * kRowTile, kPlaceThreads);
  kernels.push_back(kernel_of("place_keys_and_rows", key_blocks + row_blocks, kPlaceThreads, 0,
                              3 * places + 2 * key_blocks * kPlace + row_facts + slots, row_facts));
}

void add_rows(const BackwardSizes& s, std::vector<BackwardKernel>& kernels) {
  const auto d = static_cast<double>(s.shape.head_dim), entries = static_cast<double>(s.entries);
  const int64_t store = s.entries * (kColumn + kExcess),
                slots = s.rows * static_cast<int64_t>(sizeof(RowSlot));
  const int64_t tensors = 2 * s.rows * s.vector_bytes;                       // dO and dQ
  const int64_t touched = 2 * std::min(s.entries, s.keys) * s.vector_bytes;  // of K and V, at most
  // V and K of each entry; column, excess and rank in both passes; the entry written to its key's place, and
  // where the key's slice begins.
  const int64_t asked =
      slots + tensors + s.entries * (2 * s.vector_bytes + s.entry + kPlace + 2 * kRank) + 2 * store;
  const int64_t long_blocks = std::min<int64_t>(s.capacity / kLongRow + 1, kMostLongRowBlocks);
  kernels.push_back(kernel_of("row_gradients",
                              long_blocks + ceil_div(s.row_tiles * s.lanes, kRowThreads / 32), kRowThreads,
                              4 * entries * d, asked, tensors + touched + store));
}

void add_columns(const BackwardSizes& s, std::vector<BackwardKernel>& kernels) {
  const auto d = static_cast<double>(s.shape.head_dim), entries = static_cast<double>(s.entries);
  const int64_t written = 2 * s.keys * s.vector_bytes;                       // dK and dV
  const int64_t touched = 2 * std::min(s.entries, s.rows) * s.vector_bytes;  // of Q and dO, at most
  const int64_t asked = written + s.entries * (2 * s.vector_bytes + s.entry) + s.keys * kPlace;
  const int64_t work = (s.capacity + s.keys) / kColumnTile + 1 + backward::most_column_parts(s.capacity);
  kernels.push_back(kernel_of("sum_columns", std::min<int64_t>(work, kMostBlocks), kColumnThreads,
                              4 * entries * d, asked, written + touched));
}

BackwardKernel dense_kernel(const char* name, int64_t heads, int64_t length, const DeviceInfo& device) {
  const int64_t blocks = std::max(1, device.multiprocessors);
  return kernel_of(name, std::min(blocks, heads * ceil_div(length, kDenseRows)), kDenseThreads);
}

void add_dense_rows(const BackwardSizes& s, const DeviceInfo& device, std::vector<BackwardKernel>& kernels) {
  const int64_t heads = s.shape.batch * s.shape.q_heads,
                tiles = heads * 2 * ceil_div(s.shape.q_len, 2 * kDenseTile);
  kernels.push_back(kernel_of("gather_rows_of_tiles", std::min(tiles, kMostGathering), kPlaceThreads));
  kernels.push_back(dense_kernel("dense_queries", heads, s.shape.q_len, device));
}

}  // namespace

std::vector<BackwardKernel> backward_kernels(const AttentionSpec& spec, Dtype dtype, int64_t entries,
                                             const DeviceInfo& device, bool dense) {
  if (entries < 0)
    throw InvalidArgument("the support has " + std::to_string(entries) + " entries; allowed: 0 or more");
  const BackwardSizes sizes(spec, dtype, entries);
  std::vector<BackwardKernel> kernels;
  add_places(sizes, kernels);
  add_rows(sizes, kernels);
  if (dense) add_dense_rows(sizes, device, kernels);
  add_columns(sizes, kernels);
  if (dense) kernels.push_back(dense_kernel("dense_keys", sizes.key_heads, spec.shape.kv_len, device));
  return kernels;
}

}  // namespace splash::gpu::entmax
