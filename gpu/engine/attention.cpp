#include "gpu/engine/attention.h"

#include <limits>

#include <fmt/format.h>

#include "gpu/cuda_check.h"

namespace splash::gpu {
namespace {

constexpr int64_t kDefaultShared = 48 * 1024;  // a kernel must opt in to more

void opt_in_to_shared_memory(const Plan& plan) {
  for (const KernelLaunch& kernel : plan.kernels) {
    if (kernel.shared_bytes <= kDefaultShared) continue;
    check_cuda(cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(kernel.shared_bytes)),
               fmt::format("give {} bytes of shared memory to {}", kernel.shared_bytes, kernel.name));
  }
}

DeviceBuffer to_device(const Stream& stream, const std::vector<int32_t>& host) {
  const auto bytes = static_cast<int64_t>(host.size() * sizeof(int32_t));
  DeviceBuffer buffer(stream, bytes);
  buffer.upload(host.data(), bytes);
  return buffer;
}

// [length], [batch, length] or [batch, q_heads, length] -> [batch, q_heads, length].
std::vector<int32_t> expand_positions(const char* name, const std::vector<int64_t>& positions,
                                      const AttentionShape& shape, int64_t length) {
  const int64_t heads = shape.batch * shape.q_heads;
  const auto tables = static_cast<int64_t>(positions.size()) / length;
  std::vector<int32_t> expanded(static_cast<size_t>(heads * length));
  for (int64_t i = 0; i < heads * length; ++i) {
    const int64_t table = i / length * tables / heads;
    const int64_t position = positions[table * length + i % length];
    if (position < std::numeric_limits<int32_t>::min() || position > std::numeric_limits<int32_t>::max())
      throw InvalidArgument(fmt::format("{} holds {}; positions must fit 32 bits", name, position));
    expanded[i] = static_cast<int32_t>(position);
  }
  return expanded;
}

std::vector<int32_t> count_keys(const Selection& selection) {
  std::vector<int32_t> counts;
  for (size_t begin = 0; begin < selection.keys.size(); begin += selection.k_keep) {
    int32_t count = 0;
    while (count < selection.k_keep && selection.keys[begin + count] >= 0) ++count;
    counts.push_back(count);
  }
  return counts;
}

}  // namespace

PreparedAttention::PreparedAttention(const Variant& variant, AttentionSpec spec, Dtype dtype,
                                     const Stream& stream)
    : variant_(&variant), spec_(std::move(spec)), dtype_(dtype), stream_(&stream) {
  spec_.validate();
  require_device(stream.device());
  const DeviceScope scope(stream.device());
  const DeviceInfo device = list_devices().at(stream.device());
  require_supported(variant, spec_, dtype, device);
  plan_ = variant.plan(spec_, dtype, device);
  opt_in_to_shared_memory(plan_);
  workspace_ = DeviceBuffer(stream, plan_.workspace_bytes);
  if (!spec_.mask.q_positions.empty()) {
    q_positions_ = to_device(
        stream, expand_positions("q_positions", spec_.mask.q_positions, spec_.shape, spec_.shape.q_len));
    k_positions_ = to_device(
        stream, expand_positions("k_positions", spec_.mask.k_positions, spec_.shape, spec_.shape.kv_len));
  }
  if (spec_.selection.kind == SelectionKind::shared_keys) {
    key_indices_ = to_device(stream, spec_.selection.keys);
    key_counts_ = to_device(stream, count_keys(spec_.selection));
  }
}

Arguments PreparedAttention::checked(const DeviceTensorView& q, const DeviceTensorView& k,
                                     const DeviceTensorView& v, const DeviceTensorView& out) const {
  const AttentionShape& shape = spec_.shape;
  require_tensor("q", q, dtype_, query_extents(shape));
  require_tensor("k", k, dtype_, key_extents(shape));
  require_tensor("v", v, dtype_, key_extents(shape));
  require_tensor("out", out, dtype_, query_extents(shape));
  return {.q = q.data,
          .k = k.data,
          .v = v.data,
          .out = out.data,
          .q_positions = static_cast<const int32_t*>(q_positions_.data()),
          .k_positions = static_cast<const int32_t*>(k_positions_.data()),
          .key_indices = static_cast<const int32_t*>(key_indices_.data()),
          .key_counts = static_cast<const int32_t*>(key_counts_.data()),
          .workspace = workspace_.data(),
          .stream = stream_->handle()};
}

void PreparedAttention::enqueue(const DeviceTensorView& q, const DeviceTensorView& k,
                                const DeviceTensorView& v, const DeviceTensorView& out) const {
  const Arguments arguments = checked(q, k, v, out);
  const DeviceScope scope(stream_->device());
  variant_->launch(spec_, dtype_, plan_, arguments);
  check_launch(variant_->id().c_str());
}

std::vector<uint64_t> PreparedAttention::profile(const DeviceTensorView& q, const DeviceTensorView& k,
                                                 const DeviceTensorView& v,
                                                 const DeviceTensorView& out) const {
  Arguments arguments = checked(q, k, v, out);
  const PhaseProfile& profile = variant_->profile;
  std::vector<uint64_t> cycles(profile.phases.size());
  if (cycles.empty()) return cycles;
  const DeviceScope scope(stream_->device());
  const auto bytes = static_cast<int64_t>(cycles.size() * sizeof(uint64_t));
  DeviceBuffer sums(*stream_, bytes);
  sums.fill(0);
  arguments.workspace = sums.data();
  profile.launch(spec_, dtype_, plan_, arguments);
  sums.download(cycles.data(), bytes);
  return cycles;
}

KernelResources kernel_resources(const KernelLaunch& launch) {
  cudaFuncAttributes attributes{};
  check_cuda(cudaFuncGetAttributes(&attributes, launch.function), "read the attributes of " + launch.name);
  KernelResources resources;
  resources.registers = attributes.numRegs;
  resources.static_shared = static_cast<int64_t>(attributes.sharedSizeBytes);
  resources.local_bytes = static_cast<int64_t>(attributes.localSizeBytes);
  check_cuda(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resources.blocks_per_multiprocessor, launch.function,
                                                    launch.threads, static_cast<size_t>(launch.shared_bytes)),
      "compute the occupancy of " + launch.name);
  return resources;
}

}  // namespace splash::gpu
