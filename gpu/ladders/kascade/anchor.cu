// The anchor pass: host side. compute_capability = 90

#include "gpu/ladders/kascade/anchor.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/error.h"
#include "gpu/arch/tensor_map.h"
#include "gpu/ladders/kascade/anchor_select.cuh"

namespace splash::gpu::kascade {
namespace {

// nvcc does not accept fmt's compile-time checks, so the messages are plain strings.
void require_anchor(const AttentionSpec& spec, Dtype dtype, const AnchorOptions& options,
                    const DeviceInfo& device) {
  using std::to_string;
  if (options.k < 0)
    throw InvalidArgument("k is " + to_string(options.k) + "; it must be at least 1, or 0 for the share");
  if (options.k == 0 && !(options.share > 0 && options.share <= 1))
    throw InvalidArgument("share is " + to_string(options.share) + "; it must be above 0 and at most 1");
  const auto refuse = [](const std::string& reason) { throw Unsupported("the anchor pass " + reason); };
  if (device.compute_major != 9 || device.compute_minor != 0) {
    refuse("needs compute capability 9.0, and " + device.name + " has " + to_string(device.compute_major) +
           "." + to_string(device.compute_minor));
  }
  if (dtype != Dtype::f16 && dtype != Dtype::bf16)
    refuse("takes float16 and bfloat16, not " + std::string(splash::to_string(dtype)));
  if (spec.normalizer.kind != NormalizerKind::softmax)
    refuse("takes softmax, not " + std::string(splash::to_string(spec.normalizer.kind)));
  if (spec.shape.head_dim % 8 != 0 || spec.shape.head_dim > 128)
    refuse("takes a head_dim of at most 128 that is a multiple of 8, not " + to_string(spec.shape.head_dim));
  if (!spec.mask.q_positions.empty() || !spec.mask.cu_seqlens_q.empty())
    refuse("takes a causal mask or none");
}

void check_tensor(const std::string& name, const DeviceTensorView& tensor, Dtype dtype, int64_t heads,
                  int64_t length, const AttentionShape& shape) {
  require_extents(name.c_str(), tensor.extents, shape.batch, heads, length, shape.head_dim);
  if (tensor.dtype != dtype || !tensor.contiguous() || reinterpret_cast<uintptr_t>(tensor.data) % 16 != 0) {
    throw InvalidArgument(name + " must be " + std::string(splash::to_string(dtype)) +
                          ", contiguous and at an address that is a multiple of 16");
  }
}

template <class Element, int kDim>
void launch_slab(const AnchorSlab& slab, const AnchorOutput& output, int multiprocessors,
                 StreamHandle stream) {
  constexpr int kShared = sizeof(AnchorShared<kDim>);
  const auto sweep = [&](auto kernel) {
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared),
               "opt in to shared memory for the anchor pass");
    kernel<<<static_cast<unsigned>(std::min(slab.lists, multiprocessors)), kThreads, kShared, stream>>>(slab);
    check_launch("sweep_scores");
  };
  sweep(&sweep_scores<Element, kDim, RowNormalizers>);
  sweep(&sweep_scores<Element, kDim, PooledProbabilities>);
  select_largest<<<static_cast<unsigned>(slab.lists), kSelectThreads, 0, stream>>>(slab, output);
  check_launch("select_largest");
}

}  // namespace

AnchorPass::AnchorPass(const AttentionSpec& spec, Dtype dtype, const AnchorOptions& options,
                       const Stream& stream)
    : spec_(spec), dtype_(dtype), options_(options), stream_(&stream) {
  spec_.selection = {};
  spec_.validate();
  require_device(stream.device());
  const DeviceInfo device = list_devices().at(stream.device());
  require_anchor(spec_, dtype, options, device);
  multiprocessors_ = device.multiprocessors;
  const AttentionShape& shape = spec_.shape;
  const AnchorOutput output{.share = options.k > 0 ? 0 : options.share, .fixed_k = options.k};
  k_keep_ = output.count(shape.kv_len);  // the last query sees every key
  const Problem p = Problem::of(spec_, kTileRows);
  const int64_t lists = p.items / p.row_blocks, list_bytes = (shape.kv_len + 3) / 4 * 16;
  slab_ = static_cast<int>(std::clamp<int64_t>(options.workspace_limit / list_bytes, 1, lists));
  key_indices_ = DeviceBuffer(stream, lists * k_keep_ * int64_t{sizeof(int32_t)});
  key_counts_ = DeviceBuffer(stream, lists * int64_t{sizeof(int32_t)});
  normalizers_ = DeviceBuffer(stream, int64_t{p.items} * kTileRows * int64_t{sizeof(float)});
  pooled_ = DeviceBuffer(stream, slab_ * list_bytes);
}

void AnchorPass::enqueue(const DeviceTensorView& q, const DeviceTensorView& k) const {
  const AttentionShape& shape = spec_.shape;
  check_tensor("q", q, dtype_, shape.q_heads, shape.q_len, shape);
  check_tensor("k", k, dtype_, shape.kv_heads, shape.kv_len, shape);
  const DeviceScope scope(stream_->device());
  const AnchorOutput output{.key_indices = static_cast<int32_t*>(key_indices_.data()),
                            .key_counts = static_cast<int32_t*>(key_counts_.data()),
                            .share = options_.k > 0 ? 0 : options_.share,
                            .fixed_k = options_.k};
  const auto tiles_of = [&](const DeviceTensorView& tensor, int rows) {
    return arch::encode_tiles({.data = tensor.data,
                               .dtype = dtype_,
                               .heads = tensor.extents[0] * tensor.extents[1],
                               .length = tensor.extents[2],
                               .dim = tensor.extents[3],
                               .tile_rows = rows,
                               .tile_columns = 64});
  };
  AnchorSlab slab{.queries = tiles_of(q, kTokens),
                  .keys = tiles_of(k, kTileRows),
                  .problem = Problem::of(spec_, kTileRows),
                  .pitch = (shape.kv_len + 3) / 4 * 4,
                  .normalizers = static_cast<float*>(normalizers_.data()),
                  .pooled = static_cast<float*>(pooled_.data())};
  slab.problem.k_keep = k_keep_;
  const int lists = slab.problem.items / slab.problem.row_blocks;
  for (slab.first = 0; slab.first < lists; slab.first += slab_) {
    slab.lists = std::min(slab_, lists - slab.first);
    with_element(dtype_, [&](auto element) {
      using Element = decltype(element);
      shape.head_dim <= 64 ? launch_slab<Element, 64>(slab, output, multiprocessors_, stream_->handle())
                           : launch_slab<Element, 128>(slab, output, multiprocessors_, stream_->handle());
    });
  }
}

Selection AnchorPass::to_host() const {
  Selection selection{.kind = SelectionKind::shared_keys, .k_keep = k_keep_, .block = kTokens};
  selection.keys.resize(static_cast<size_t>(key_indices_.bytes()) / sizeof(int32_t));
  key_indices_.download(selection.keys.data(), key_indices_.bytes());
  return selection;
}

}  // namespace splash::gpu::kascade
