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

}  // namespace splash::gpu
