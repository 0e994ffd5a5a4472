#pragma once
// Dense, contiguous tensors of layout [batch, heads, length, head_dim], and views of them.

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include <Eigen/Core>

#include "core/shape.h"

namespace splash {

template <class T>
using RowMajorMatrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// A view: the caller keeps the memory alive. T may be const.
template <class T>
struct TensorView {
  T* data = nullptr;
  int64_t batch = 0, heads = 0, length = 0, dim = 0;

  using Value = std::remove_const_t<T>;
  using Map =
      Eigen::Map<std::conditional_t<std::is_const_v<T>, const RowMajorMatrix<Value>, RowMajorMatrix<Value>>>;

  int64_t size() const { return batch * heads * length * dim; }
  T* row(int64_t b, int64_t h, int64_t i) const { return data + ((b * heads + h) * length + i) * dim; }
  Map matrix(int64_t b, int64_t h) const { return Map(row(b, h, 0), length, dim); }  // [length, dim]

  operator TensorView<const Value>() const { return {data, batch, heads, length, dim}; }
};

// Number of elements of a tensor with these extents. Throws InvalidArgument if one is negative or their
// product exceeds 63 bits.
size_t tensor_size(int64_t batch, int64_t heads, int64_t length, int64_t dim);

// Owns its memory; new tensors are zero.
template <class T>
class Tensor {
 public:
  Tensor() = default;
  Tensor(int64_t batch, int64_t heads, int64_t length, int64_t dim)
      : batch_(batch),
        heads_(heads),
        length_(length),
        dim_(dim),
        data_(tensor_size(batch, heads, length, dim)) {}

  int64_t batch() const { return batch_; }
  int64_t heads() const { return heads_; }
  int64_t length() const { return length_; }
  int64_t dim() const { return dim_; }
  int64_t size() const { return static_cast<int64_t>(data_.size()); }

  T* data() { return data_.data(); }
  const T* data() const { return data_.data(); }
  T* row(int64_t b, int64_t h, int64_t i) { return view().row(b, h, i); }
  const T* row(int64_t b, int64_t h, int64_t i) const { return view().row(b, h, i); }
  auto matrix(int64_t b, int64_t h) { return view().matrix(b, h); }
  auto matrix(int64_t b, int64_t h) const { return view().matrix(b, h); }

  TensorView<T> view() { return {data_.data(), batch_, heads_, length_, dim_}; }
  TensorView<const T> view() const { return {data_.data(), batch_, heads_, length_, dim_}; }
  operator TensorView<T>() { return view(); }
  operator TensorView<const T>() const { return view(); }

  // Element-wise conversion, for example the double oracle's inputs from rounded ones.
  template <class U>
  Tensor<U> cast() const {
    Tensor<U> result(batch_, heads_, length_, dim_);
    for (int64_t i = 0; i < size(); ++i) result.data()[i] = static_cast<U>(data_[i]);
    return result;
  }

 private:
  int64_t batch_ = 0, heads_ = 0, length_ = 0, dim_ = 0;
  std::vector<T> data_;
};

// Q, K and V of one problem.
template <class T>
struct AttentionInputs {
  Tensor<T> q;  // [batch, q_heads, q_len, head_dim]
  Tensor<T> k;  // [batch, kv_heads, kv_len, head_dim]
  Tensor<T> v;  // [batch, kv_heads, kv_len, head_dim]

  AttentionShape shape() const { return {q.batch(), q.heads(), k.heads(), q.length(), k.length(), q.dim()}; }

  template <class U>
  AttentionInputs<U> cast() const {
    return {q.template cast<U>(), k.template cast<U>(), v.template cast<U>()};
  }
};

// Throws InvalidArgument unless the extents of a tensor, which messages call `name`, are [batch, heads,
// length, dim].
void require_extents(const char* name, const std::array<int64_t, 4>& extents, int64_t batch, int64_t heads,
                     int64_t length, int64_t dim);

template <class T>
void require_extents(const char* name, const TensorView<T>& t, int64_t batch, int64_t heads, int64_t length,
                     int64_t dim) {
  require_extents(name, std::array<int64_t, 4>{t.batch, t.heads, t.length, t.dim}, batch, heads, length, dim);
}

}  // namespace splash
