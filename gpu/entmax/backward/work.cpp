// Repeats the grids that places.cu, rows.cu, long_rows.cu, columns.cu, long_columns.cu and dense.cpp launch,
// and counts their work.

#include "gpu/entmax/backward/work.h"

#include <algorithm>

#include "core/error.h"
#include "core/round.h"
#include "gpu/entmax/backward/problem.h"

namespace splash::gpu::entmax {
namespace {

using backward::kColumnTile, backward::kDenseTile, backward::kKeyBlock, backward::kLongColumn,
    backward::kLongRow, backward::kMostBlocks, backward::kMostLongBlocks, backward::kRowTile,
    backward::RowSlot;

constexpr int64_t kPlaceThreads = 256, kCountThreads = 1024, kCountKeys = 16384, kCountRows = 65535,
                  kRowThreads = 128, kLongRowThreads = 256, kColumnThreads = 128, kScanThreads = 1024,
                  kDenseThreads = 256, kDenseRows = 128, kMostGathering = 512;
constexpr int64_t kPlace = 4, kOffset = 8, kCount = 4, kColumn = 4, kExcess = 4;  // bytes

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

int64_t count_blocks(const BackwardSizes& s, const DeviceInfo& device) {
  const int64_t rows_a_key = s.shape.group() * s.shape.q_len, windows = ceil_div(s.shape.kv_len, kCountKeys);
  const int64_t wanted = device.multiprocessors / (windows * s.key_heads) + 1,
                most = rows_a_key / kCountThreads + 1, least = rows_a_key / kCountRows + 1;
  return s.key_heads * windows * std::max(std::min(wanted, most), least);
}

void add_places(const BackwardSizes& s, const DeviceInfo& device, std::vector<BackwardKernel>& kernels) {
  const int64_t key_blocks = ceil_div(s.keys, kKeyBlock), places = s.keys * kPlace,
                row_facts = s.rows * (kOffset + kCount), columns = s.entries * kColumn;
  const int64_t slots = s.row_tiles * kRowTile * static_cast<int64_t>(sizeof(RowSlot));
  kernels.push_back(
      kernel_of("clear_counts", std::min<int64_t>(key_blocks, kMostBlocks), kPlaceThreads, 0, places));
  kernels.push_back(kernel_of("place_rows", ceil_div(s.row_tiles * kRowTile, kPlaceThreads), kPlaceThreads, 0,
                              row_facts + slots, row_facts));
  kernels.push_back(kernel_of("count_entries", count_blocks(s, device), kCountThreads, 0,
                              row_facts + columns + 2 * places, row_facts + columns));
  kernels.push_back(kernel_of("place_keys", key_blocks, kKeyBlock / 4, 0, 2 * places));
  kernels.push_back(kernel_of("place_key_blocks", 1, kScanThreads, 0, 2 * key_blocks * kPlace));
}

void add_rows(const BackwardSizes& s, std::vector<BackwardKernel>& kernels) {
  const auto d = static_cast<double>(s.shape.head_dim), entries = static_cast<double>(s.entries);
  const int64_t store = s.entries * (kColumn + kExcess),
                slots = s.rows * static_cast<int64_t>(sizeof(RowSlot));
  const int64_t tensors = 2 * s.rows * s.vector_bytes;                       // dO and dQ
  const int64_t touched = 2 * std::min(s.entries, s.keys) * s.vector_bytes;  // of K and V, at most
  // V and K of each entry; column and excess in both passes; the entry written to its key's place, and the
  // atomic that takes the place.
  const int64_t asked = slots + tensors + s.entries * (2 * s.vector_bytes + s.entry + 2 * kPlace) + 2 * store;
  kernels.push_back(kernel_of("row_gradients", ceil_div(s.row_tiles * s.lanes, kRowThreads / 32), kRowThreads,
                              4 * entries * d, asked, tensors + touched + store));
  kernels.push_back(kernel_of(
      "long_row_gradients", std::min<int64_t>(s.capacity / kLongRow + 1, kMostBlocks / 4), kLongRowThreads));
}

void add_columns(const BackwardSizes& s, std::vector<BackwardKernel>& kernels) {
  const auto d = static_cast<double>(s.shape.head_dim), entries = static_cast<double>(s.entries);
  const int64_t written = 2 * s.keys * s.vector_bytes;                       // dK and dV
  const int64_t touched = 2 * std::min(s.entries, s.rows) * s.vector_bytes;  // of Q and dO, at most
  const int64_t asked = written + s.entries * (2 * s.vector_bytes + s.entry) + s.keys * kPlace;
  kernels.push_back(kernel_of("sum_columns",
                              std::min<int64_t>((s.capacity + s.keys) / kColumnTile + 1, kMostBlocks),
                              kColumnThreads, 4 * entries * d, asked, written + touched));
  if (s.capacity <= kLongColumn) return;
  const int64_t parts = std::min<int64_t>(backward::most_column_parts(s.capacity), kMostLongBlocks),
                columns = std::min<int64_t>(s.capacity / kLongColumn, kMostLongBlocks);
  kernels.push_back(kernel_of("sum_long_columns", parts, kColumnThreads));
  kernels.push_back(kernel_of("finish_long_columns", columns, kColumnThreads));
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
  add_places(sizes, device, kernels);
  add_rows(sizes, kernels);
  if (dense) add_dense_rows(sizes, device, kernels);
  add_columns(sizes, kernels);
  if (dense) kernels.push_back(dense_kernel("dense_keys", sizes.key_heads, spec.shape.kv_len, device));
  return kernels;
}

}  // namespace splash::gpu::entmax
