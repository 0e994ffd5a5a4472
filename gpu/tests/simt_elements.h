#pragma once
// Tensors for kernels that run on the CPU (simt/simt.h).

#include <vector>

#include "core/tensor.h"

namespace splash::gpu::testing {

// A tensor's elements as kernels take them, and back.
template <class T>
std::vector<T> elements_of(const Tensor<double>& tensor) {
  std::vector<T> elements;
  for (int64_t i = 0; i < tensor.size(); ++i)
    elements.push_back(static_cast<T>(static_cast<float>(tensor.data()[i])));
  return elements;
}
template <class T>
Tensor<double> tensor_of(int64_t batch, int64_t heads, int64_t length, int64_t dim,
                         const std::vector<T>& elements) {
  Tensor<double> tensor(batch, heads, length, dim);
  for (int64_t i = 0; i < tensor.size(); ++i)
    tensor.data()[i] = static_cast<double>(static_cast<float>(elements[static_cast<size_t>(i)]));
  return tensor;
}

}  // namespace splash::gpu::testing
