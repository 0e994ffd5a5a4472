#include "gpu/entmax/attention.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "gpu/compute_capability.h"
#include "gpu/cuda_check.h"
#include "gpu/device.h"
#include "gpu/entmax/backward/backward.h"

namespace splash::gpu::entmax {
namespace {

constexpr int64_t kEntriesARow = 16;                       // of the first store
constexpr int64_t kMostCapacity = (int64_t{1} << 31) - 1;  // that backward takes

}  // namespace

EntmaxAttention::EntmaxAttention(AttentionSpec spec, Dtype dtype, const Stream& stream, int64_t capacity,
                                 ForwardPath path, const std::optional<Tuning>& tuning)
    : spec_(std::move(spec)), dtype_(dtype), stream_(&stream) {
  require_forward(spec_, dtype_);
  if (capacity < 0) throw InvalidArgument(fmt::format("capacity is {}; it must be at least 0", capacity));
  require_device(stream.device());
  const DeviceScope scope(stream.device());
  const DeviceInfo device = list_devices().at(stream.device());
  tuning_ = tuning ? *tuning : tuned_for(spec_, dtype_, device);
  validate(tuning_);
  path_ = choose_path(spec_, dtype_, path, compute_capability_of(device), tuning_);
  const int64_t rows = spec_.shape.rows();
  most_entries_ = visible_pairs(spec_.shape, spec_.mask);
  if (spec_.selection.kind == SelectionKind::top_k_row && spec_.selection.head_k_keep.empty())
    most_entries_ = std::min(most_entries_, rows * std::min(spec_.selection.k_keep, spec_.shape.kv_len));
  const std::vector<float> alpha(spec_.normalizer.alpha.begin(), spec_.normalizer.alpha.end());
  alpha_ = DeviceBuffer(stream, static_cast<int64_t>(alpha.size() * sizeof(float)));
  alpha_.upload(alpha.data(), alpha_.bytes());
  if (!spec_.selection.head_k_keep.empty()) {
    std::vector<int> k_keep;
    for (int64_t h = 0; h < spec_.shape.q_heads; ++h)
      k_keep.push_back(static_cast<int>(std::min(spec_.selection.k_keep_of(h), spec_.shape.kv_len)));
    head_k_keep_ = DeviceBuffer(stream, static_cast<int64_t>(k_keep.size() * sizeof(int)));
    head_k_keep_.upload(k_keep.data(), head_k_keep_.bytes());
  }
  if (const MaskTables tables(spec_); tables.bytes() > 0) {
    mask_tables_ = DeviceBuffer(stream, tables.bytes());
    mask_tables_.upload(tables.data(), tables.bytes());
    mask_ = tables.at(mask_tables_.data());
  }
  if (!spec_.sinks.empty()) {
    const std::vector<float> sinks(spec_.sinks.begin(), spec_.sinks.end());
    sinks_ = DeviceBuffer(stream, static_cast<int64_t>(sinks.size() * sizeof(float)));
    sinks_.upload(sinks.data(), sinks_.bytes());
  }
  if (spec_.dropout.drops()) {
    dropout_seed_ = DeviceBuffer(stream, sizeof spec_.dropout.seed);
    dropout_seed_.upload(&spec_.dropout.seed, dropout_seed_.bytes());
  }
  if (spec_.bias.any()) {
    const std::vector<float> bias(spec_.bias.table.begin(), spec_.bias.table.end());
    bias_ = DeviceBuffer(stream, static_cast<int64_t>(bias.size() * sizeof(float)));
    bias_.upload(bias.data(), bias_.bytes());
  }
  tau_ = DeviceBuffer(stream, rows * int64_t{sizeof(float)});
  used_ = DeviceBuffer(stream, sizeof(unsigned long long));
  offsets_ = DeviceBuffer(stream, rows * int64_t{sizeof(int64_t)});
  counts_ = DeviceBuffer(stream, rows * int64_t{sizeof(int32_t)});
  forward_workspace_ = DeviceBuffer(stream, forward_workspace_bytes(spec_, dtype_, tuning_));
  support_ = {.used = static_cast<unsigned long long*>(used_.data()),
              .offsets = static_cast<int64_t*>(offsets_.data()),
              .counts = static_cast<int32_t*>(counts_.data())};
  leaves_broad_rows_ = may_leave_rows(spec_, path_);
  make_store(capacity > 0 ? capacity : std::min(most_entries_, kEntriesARow * rows));
}

void EntmaxAttention::forward(const DeviceTensorView& q, const DeviceTensorView& k, const DeviceTensorView& v,
                              const DeviceTensorView& out) {
  require_tensor("q", q, dtype_, query_extents(spec_.shape));
  require_tensor("k", k, dtype_, key_extents(spec_.shape));
  require_tensor("v", v, dtype_, key_extents(spec_.shape));
  require_tensor("out", out, dtype_, query_extents(spec_.shape));
  const DeviceScope scope(stream_->device());
  last_ = {q, k, v, out};
  enqueue(last_);
}

bool EntmaxAttention::ensure_stored() {
  const DeviceScope scope(stream_->device());
  const bool grown = make_room(last_);
  return make_workspace() || grown;
}

void EntmaxAttention::backward(const DeviceTensorView& q, const DeviceTensorView& k,
                               const DeviceTensorView& v, const DeviceTensorView& d_out,
                               const DeviceTensorView& d_q, const DeviceTensorView& d_k,
                               const DeviceTensorView& d_v, float* d_alpha, StoreCheck check, float* d_sinks,
                               float* d_bias) {
  require_tensor("q", q, dtype_, query_extents(spec_.shape));
  require_tensor("k", k, dtype_, key_extents(spec_.shape));
  require_tensor("v", v, dtype_, key_extents(spec_.shape));
  require_tensor("d_out", d_out, dtype_, query_extents(spec_.shape));
  require_tensor("d_q", d_q, dtype_, query_extents(spec_.shape));
  require_tensor("d_k", d_k, dtype_, key_extents(spec_.shape));
  require_tensor("d_v", d_v, dtype_, key_extents(spec_.shape));
  require_support();
  const DeviceScope scope(stream_->device());
  if (!capturing()) {
    if (check == StoreCheck::wait) make_room({q, k, v, d_q});
    make_workspace();
  } else if (backward_workspace_.bytes() < workspace_bytes(support_.capacity)) {
    throw InvalidArgument("backward has no workspace yet; call ensure_stored() before the capture");
  }
  enqueue_backward(spec_, dtype_,
                   {.q = q.data,
                    .k = k.data,
                    .v = v.data,
                    .d_out = d_out.data,
                    .support = support_,
                    .unstored = leaves_broad_rows_ ? unstored_rows(spec_, dtype_, forward_arguments(last_))
                                                   : UnstoredRows{},
                    .mask = mask_,
                    .alpha = alpha(),
                    .tau = tau(),
                    .sinks = sinks(),
                    .dropout_seed = dropout_seed(),
                    .bias = bias(),
                    .d_q = d_q.data,
                    .d_k = d_k.data,
                    .d_v = d_v.data,
                    .d_alpha = d_alpha,
                    .d_sinks = d_sinks,
                    .d_bias = d_bias,
                    .workspace = backward_workspace_.data(),
                    .stream = stream_->handle(),
                    .tuning = tuning_});
}

int64_t EntmaxAttention::support_entries() const {
  require_support();
  const DeviceScope scope(stream_->device());
  unsigned long long used = 0;
  used_.download(&used, used_.bytes());
  return static_cast<int64_t>(used);
}

void EntmaxAttention::require_support() const {
  if (last_.q.data == nullptr) throw InvalidArgument("there is no support yet; call forward() first");
}

ForwardArguments EntmaxAttention::forward_arguments(const Tensors& tensors) const {
  return {.q = tensors.q.data,
          .k = tensors.k.data,
          .v = tensors.v.data,
          .out = tensors.out.data,
          .alpha = alpha(),
          .mask = mask_,
          .head_k_keep = static_cast<const int*>(head_k_keep_.data()),
          .sinks = sinks(),
          .dropout_seed = dropout_seed(),
          .bias = bias(),
          .tau = static_cast<float*>(tau_.data()),
          .support = support_,
          .stored = leaves_broad_rows_ ? StoredRows::sparse : StoredRows::all,
          .workspace = forward_workspace_.data(),
          .stream = stream_->handle(),
          .path = path_,
          .tuning = tuning_};
}

int64_t EntmaxAttention::workspace_bytes(int64_t capacity) const {
  return backward_workspace_bytes(spec_, dtype_, capacity, leaves_broad_rows_, tuning_);
}

void EntmaxAttention::enqueue(const Tensors& tensors) {
  used_.fill(0);
  enqueue_forward(spec_, dtype_, forward_arguments(tensors));
  fits_ = support_.capacity >= most_entries_;
}

void EntmaxAttention::make_store(int64_t capacity) {
  static_cast<void>(workspace_bytes(capacity));  // throws where backward would
  DeviceBuffer columns(*stream_, capacity * int64_t{sizeof(int32_t)});
  DeviceBuffer excess(*stream_, capacity * int64_t{sizeof(float)});
  columns_ = std::move(columns);
  excess_ = std::move(excess);
  support_.capacity = capacity;
  support_.columns = static_cast<int32_t*>(columns_.data());
  support_.excess = static_cast<float*>(excess_.data());
}

bool EntmaxAttention::make_workspace() {
  const int64_t bytes = workspace_bytes(support_.capacity);
  if (backward_workspace_.bytes() >= bytes) return false;
  backward_workspace_ = {};  // first, so that both need not fit
  backward_workspace_ = DeviceBuffer(*stream_, bytes);
  return true;
}

bool EntmaxAttention::make_room(const Tensors& tensors) {
  bool grown = false;
  while (!fits_) {
    const int64_t entries = support_entries();
    fits_ = entries <= support_.capacity;
    if (fits_) break;
    const int64_t roomy = std::min({entries + entries / 8, most_entries_, kMostCapacity});
    make_store(std::max(entries, roomy));
    enqueue(tensors);
    grown = true;
  }
  return grown;
}

bool EntmaxAttention::capturing() const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(stream_->handle(), &status), "ask whether a stream is captured");
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace splash::gpu::entmax
