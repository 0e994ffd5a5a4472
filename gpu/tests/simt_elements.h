#pragma once
// Converts numbers to the types of kernels that run on the CPU (simt/simt.h), and back.

#include <algorithm>
#include <span>
#include <type_traits>
#include <vector>

#include "core/tensor.h"

namespace splash::gpu::testing {

template <class T>
std::vector<T> elements_of(std::span<const double> values) {
  return {values.begin(), values.end()};
}
template <class T>
std::vector<T> elements_of(const Tensor<double>& tensor) {
  return elements_of<T>(std::span(tensor.data(), static_cast<size_t>(tensor.size())));
}

template <class T>
std::vector<double> values_of(const std::vector<T>& elements) {
  using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;  // 16-bit types via float
  std::vector<double> values(elements.size());
  std::ranges::transform(elements, values.begin(), [](T element) { return static_cast<Wide>(element); });
  return values;
}
template <class T>
Tensor<double> tensor_of(int64_t batch, int64_t heads, int64_t length, int64_t dim,
                         const std::vector<T>& elements) {
  Tensor<double> tensor(batch, heads, length, dim);
  std::ranges::copy(values_of(elements), tensor.data());
  return tensor;
}

}  // namespace splash::gpu::testing
