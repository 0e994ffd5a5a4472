#include "experiments/kinds/support/gpu_support.h"

#include <algorithm>
#include <vector>

#include "cpu_ref/attention/forward_rows.h"
#include "experiments/kinds/support/reference.h"
#include "gpu/engine/device_vector.h"
#include "gpu/entmax/forward.h"

namespace splash::experiments {
namespace {

constexpr int64_t kMostEntries = int64_t{1} << 28;  // 8 bytes each on the device, 4 on the host
constexpr int64_t kLeastBytes = 16;                 // a buffer must not be empty

}  // namespace

cpu_ref::BlockMap support_blocks(const AttentionSpec& spec, std::span<const int64_t> offsets,
                                 std::span<const int32_t> counts, std::span<const int32_t> columns) {
  cpu_ref::BlockMapBuilder builder(spec.shape, 64);
  parallel_for(spec.shape.rows(), 64, [&](int64_t r) {
    const cpu_ref::RowAddress at = cpu_ref::row_address(spec.shape, r);
    const auto entries = columns.subspan(static_cast<size_t>(offsets[r]), static_cast<size_t>(counts[r]));
    cpu_ref::Row<float> row;
    row.keys.assign(entries.begin(), entries.end());
    row.p.assign(entries.size(), 1);
    builder.note(at, spec.mask.row(spec.shape, at.batch, at.q_head, at.query), row);
  });
  return std::move(builder).finish();
}

void add_support(const AttentionSpec& spec, Dtype dtype, const gpu::DeviceTensorView& q,
                 const gpu::DeviceTensorView& k, const gpu::DeviceTensorView& v,
                 const gpu::DeviceTensorView& out, const gpu::Stream& stream, CaseResult& result) {
  const int64_t rows = spec.shape.rows();
  const std::vector<float> alphas(spec.normalizer.alpha.begin(), spec.normalizer.alpha.end());
  gpu::DeviceBuffer alpha(stream, static_cast<int64_t>(alphas.size() * sizeof(float))), used(stream, 8),
      offsets(stream, rows * 8), counts(stream, rows * 4),
      workspace(stream, gpu::entmax::forward_workspace_bytes(spec, dtype));
  alpha.upload(alphas.data(), alpha.bytes());
  const gpu::entmax::MaskTables tables(spec);
  gpu::DeviceBuffer mask_tables(stream, std::max(tables.bytes(), kLeastBytes));
  mask_tables.upload(tables.data(), tables.bytes());
  // Runs forward and returns the number of support entries. Stores as many as `capacity` allows.
  const auto forward = [&](int64_t capacity, const gpu::DeviceBuffer& columns,
                           const gpu::DeviceBuffer& excess) {
    used.fill(0);
    gpu::entmax::enqueue_forward(spec, dtype,
                                 {.q = q.data,
                                  .k = k.data,
                                  .v = v.data,
                                  .out = out.data,
                                  .alpha = static_cast<const float*>(alpha.data()),
                                  .mask = tables.at(mask_tables.data()),
                                  .support = {.capacity = capacity,
                                              .used = static_cast<unsigned long long*>(used.data()),
                                              .offsets = static_cast<int64_t*>(offsets.data()),
                                              .counts = static_cast<int32_t*>(counts.data()),
                                              .columns = static_cast<int32_t*>(columns.data()),
                                              .excess = static_cast<float*>(excess.data())},
                                  .workspace = workspace.data(),
                                  .stream = stream.handle()});
    return static_cast<int64_t>(gpu::downloaded<unsigned long long>(used).front());
  };
  const gpu::DeviceBuffer no_room(stream, kLeastBytes);
  const int64_t entries = forward(0, no_room, no_room);
  result.numbers["support_mean"] = static_cast<double>(entries) / static_cast<double>(rows);
  if (entries > kMostEntries) return;
  const int64_t bytes = std::max(4 * entries, kLeastBytes);
  const gpu::DeviceBuffer columns(stream, bytes), excess(stream, bytes);
  forward(entries, columns, excess);
  result.numbers["block_sparsity_64"] =
      block_sparsity(support_blocks(spec, gpu::downloaded<int64_t>(offsets), gpu::downloaded<int32_t>(counts),
                                    gpu::downloaded<int32_t>(columns)));
}

}  // namespace splash::experiments
