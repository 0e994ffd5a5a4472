#include <fmt/format.h>

#include "core/error.h"
#include "gpu/engine/tensor.h"

namespace splash::gpu {

DeviceTensorView DeviceTensorView::of(void* data, Dtype dtype, std::array<int64_t, 4> extents) {
  const auto [batch, heads, length, dim] = extents;
  return {data, dtype, extents, {heads * length * dim, length * dim, dim, 1}};
}

bool DeviceTensorView::contiguous() const {
  const auto dense = of(data, dtype, extents).strides;
  for (size_t i = 0; i < extents.size(); ++i) {
    if (extents[i] != 1 && strides[i] != dense[i]) return false;
  }
  return true;
}

std::array<int64_t, 4> query_extents(const AttentionShape& shape) {
  return {shape.batch, shape.q_heads, shape.q_len, shape.head_dim};
}
std::array<int64_t, 4> key_extents(const AttentionShape& shape) {
  return {shape.batch, shape.kv_heads, shape.kv_len, shape.head_dim};
}

void require_tensor(const char* name, const DeviceTensorView& tensor, Dtype dtype,
                    const std::array<int64_t, 4>& extents) {
  require_extents(name, tensor.extents, extents[0], extents[1], extents[2], extents[3]);
  if (tensor.dtype != dtype)
    throw InvalidArgument(
        fmt::format("{} is {}; it must be {}", name, to_string(tensor.dtype), to_string(dtype)));
  if (!tensor.contiguous()) {
    throw InvalidArgument(fmt::format("{} has strides {}, {}, {}, {}; it must be contiguous", name,
                                      tensor.strides[0], tensor.strides[1], tensor.strides[2],
                                      tensor.strides[3]));
  }
  if (tensor.data == nullptr || reinterpret_cast<uintptr_t>(tensor.data) % 16 != 0)
    throw InvalidArgument(
        fmt::format("{} lies at {}; its address must be a multiple of 16", name, tensor.data));
}

}  // namespace splash::gpu
