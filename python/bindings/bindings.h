#pragma once
// What the files of the extension share: arrays in and out, and who adds which functions.

#include <array>
#include <cstdint>
#include <memory>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace splash::python {

namespace nb = nanobind;

void bind_spec(nb::module_& module);
void bind_entmax(nb::module_& module);
void bind_cpu_attention(nb::module_& module);
void bind_cuda(nb::module_& module);
void bind_decode(nb::module_& module);
void bind_kascade(nb::module_& module);
void bind_peers(nb::module_& module);

// Of device memory, which arrives as an address.
template <class T = void>
T* at(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

// [batch, heads, length, head_dim], contiguous, in host memory; borrowed for the call.
template <class T>
using TensorArray = nb::ndarray<const T, nb::ndim<4>, nb::c_contig, nb::device::cpu>;

template <class T>
TensorView<const T> view(const TensorArray<T>& array) {
  return {array.data(), static_cast<int64_t>(array.shape(0)), static_cast<int64_t>(array.shape(1)),
          static_cast<int64_t>(array.shape(2)), static_cast<int64_t>(array.shape(3))};
}

// A NumPy array over what `owner` owns, which lives as long as the array. No copy.
template <class T, class Owner>
nb::object numpy_over(T* data, const std::vector<int64_t>& shape, Owner&& owner) {
  auto kept = std::make_unique<std::decay_t<Owner>>(std::forward<Owner>(owner));
  const nb::capsule capsule(kept.get(),
                            [](void* p) noexcept { delete static_cast<std::decay_t<Owner>*>(p); });
  static_cast<void>(kept.release());  // the capsule has it now
  const std::vector<size_t> extents(shape.begin(), shape.end());
  return nb::cast(nb::ndarray<nb::numpy, T>(data, extents.size(), extents.data(), capsule));
}

template <class T>
nb::object to_numpy(Tensor<T>&& tensor) {
  T* const data = tensor.data();  // moving a vector does not move its elements
  const std::vector<int64_t> shape{tensor.batch(), tensor.heads(), tensor.length(), tensor.dim()};
  return numpy_over(data, shape, std::move(tensor));
}

template <class T>
nb::object to_numpy(std::vector<T>&& values, const std::vector<int64_t>& shape) {
  T* const data = values.data();
  return numpy_over(data, shape, std::move(values));
}

}  // namespace splash::python
