#pragma once
// Tensors in device memory, layout [batch, heads, length, dim]. Compiles without nvcc.

#include <array>
#include <cstdint>

#include "core/dtype.h"
#include "core/shape.h"
#include "core/tensor.h"
#include "gpu/engine/memory.h"

namespace splash::gpu {

// A view; the caller keeps the memory alive. Strides are in elements.
struct DeviceTensorView {
  void* data = nullptr;
  Dtype dtype = Dtype::f32;
  std::array<int64_t, 4> extents{};  // batch, heads, length, dim
  std::array<int64_t, 4> strides{};

  // A contiguous view.
  static DeviceTensorView of(void* data, Dtype dtype, std::array<int64_t, 4> extents);
  bool contiguous() const;  // the stride of an extent of 1 does not matter
  int64_t size() const { return extents[0] * extents[1] * extents[2] * extents[3]; }
};

// [batch, q_heads, q_len, head_dim] and [batch, kv_heads, kv_len, head_dim].
std::array<int64_t, 4> query_extents(const AttentionShape& shape);
std::array<int64_t, 4> key_extents(const AttentionShape& shape);

// Throws InvalidArgument if the tensor has other extents or another dtype, is not contiguous, is null or is
// not 16-byte aligned.
void require_tensor(const char* name, const DeviceTensorView& tensor, Dtype dtype,
                    const std::array<int64_t, 4>& extents);

// A contiguous tensor that owns its memory, which is allocated and freed in the order of its stream.
class DeviceTensor {
 public:
  DeviceTensor() = default;
  DeviceTensor(const Stream& stream, Dtype dtype, std::array<int64_t, 4> extents);  // contents undefined

  // Rounds to nearest even. Does not wait for the device; the host tensor may be destroyed at once.
  static DeviceTensor from(const Stream& stream, Dtype dtype, const Tensor<float>& host);
  static DeviceTensor from(const Stream& stream, Dtype dtype, const Tensor<double>& host);

  DeviceTensorView view() const { return DeviceTensorView::of(buffer_.data(), dtype_, extents_); }
  DeviceBuffer& buffer() { return buffer_; }
  Dtype dtype() const { return dtype_; }

  // Exact. Waits for the stream. Throws DeviceError if work enqueued before it failed.
  Tensor<double> to_host() const;

 private:
  Dtype dtype_ = Dtype::f32;
  std::array<int64_t, 4> extents_{};
  DeviceBuffer buffer_;
};

}  // namespace splash::gpu
