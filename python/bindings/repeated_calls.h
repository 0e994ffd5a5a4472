#pragma once
// Attention on torch tensors in a GPU's memory that is like a call before, which was checked: all that is
// left to do on the host is to look that up, and the launches. Included by cuda.cpp alone.

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <memory>
#include <nanobind/nanobind.h>
#include <optional>
#include <stdexcept>

#include "python/bindings/bindings.h"
#include "python/bindings/dlpack_exchange.h"

namespace splash::python {

template <class Problem, class Notice>
class RepeatedCalls {
 public:
  // tensors: torch.Tensor. Raises AttributeError or RuntimeError where it has no exchange that is understood.
  explicit RepeatedCalls(const nb::type_object& tensors)
      : type_(tensors),
        exchange_(static_cast<const dlpack::Exchange*>(
            nb::cast<nb::capsule>(tensors.attr("__dlpack_c_exchange_api__")).data("dlpack_exchange_api"))) {
    while (exchange_ != nullptr && exchange_->major != dlpack::kMajor) exchange_ = exchange_->older;
    if (exchange_ == nullptr || exchange_->tensor_from_object == nullptr)
      throw std::runtime_error("PyTorch's tensors have no exchange of version 1 of DLPack");
  }

  // A call that was checked. alpha: a number, or a tensor of float32 for the call alone; fixed: the address
  // of the number in the GPU's memory, which stays. packed: 0, or a number that says of what lengths packed
  // sequences are. problem: what computes it.
  void add(nb::handle q, nb::handle k, nb::handle alpha, bool causal, double scale, int64_t k_keep,
           int64_t window, int64_t packed, uintptr_t fixed, const nb::object& problem) {
    const auto tensors = look_at<2>({q, k});
    const auto alphas = tensors ? alphas_of(alpha, (*tensors)[0]) : std::nullopt;
    if (!alphas) return;
    if (calls_.size() >= kMost) calls_.clear();
    calls_[key_of((*tensors)[0], (*tensors)[1], *alphas, causal, scale, k_keep, window, packed)] = {problem,
                                                                                                    fixed};
  }

  // Forward into out; None where no such call was added, v is not as k, or one of them does not lie in memory
  // as the kernels need it. store_bytes: of the store that comes back, with its notice unless a graph is
  // captured; 0: nothing is kept, and True comes back.
  nb::object forward(nb::handle q, nb::handle k, nb::handle v, nb::handle out, int64_t store_bytes,
                     nb::handle alpha, bool causal, double scale, int64_t k_keep, int64_t window,
                     int64_t packed) const {
    const auto tensors = look_at<4>({q, k, v, out});
    if (!tensors) return nb::none();
    const auto& [of_q, of_k, of_v, of_out] = *tensors;
    if (!same_extents(of_q, of_out) || !same_extents(of_k, of_v) || of_k.shape[0] != of_q.shape[0] ||
        of_k.shape[3] != of_q.shape[3])
      return nb::none();
    const auto alphas = alphas_of(alpha, of_q);
    if (!alphas) return nb::none();
    const auto found = calls_.find(key_of(of_q, of_k, *alphas, causal, scale, k_keep, window, packed));
    if (found == calls_.end()) return nb::none();
    const Call& call = found->second;
    const auto& problem = nb::cast<const Problem&>(call.problem);
    const int32_t device = of_q.device.device_id;
    void* stream = nullptr;
    if (exchange_->current_stream(dlpack::kCuda, device, &stream) != 0) return unknown();
    const Managed workspace = allocate(problem.workspace_bytes(), device);
    if (!workspace) return unknown();
    Managed store = store_bytes > 0 ? allocate(store_bytes, device) : Managed();
    if (store_bytes > 0 && !store) return unknown();
    nb::object notice = nb::none();
    if (store && !is_captured(stream))
      notice = nb::cast(new Notice(problem.key()), nb::rv_policy::take_ownership);
    problem.forward(false, address(of_q), address(of_k), address(of_v),
                    alphas->address != 0 ? alphas->address : call.fixed, address(of_out),
                    store ? address(store->tensor) : 0, store_bytes, address(workspace->tensor),
                    reinterpret_cast<uintptr_t>(stream), {},
                    notice.is_none() ? nullptr : nb::inst_ptr<Notice>(notice));
    if (!store) return nb::bool_(true);
    void* object = nullptr;
    if (exchange_->object_from_managed(store.release(), &object) != 0) throw nb::python_error();
    const nb::object kept = nb::steal(static_cast<PyObject*>(object));
    return nb::make_tuple(kept, notice);
  }

  // Gradients by d_q, d_k and d_v of such a call with a number for alpha. store, notice: what forward
  // returned. None where forward would return it, or a graph is captured. False where the store does not hold
  // the whole support, or nobody knows: then the gradients lack something.
  nb::object backward(nb::handle d_out, nb::handle q, nb::handle k, nb::handle v, nb::handle d_q,
                      nb::handle d_k, nb::handle d_v, uintptr_t store, int64_t store_bytes,
                      const Notice& notice, nb::handle alpha, bool causal, double scale, int64_t k_keep,
                      int64_t window, int64_t packed) const {
    if (!PyFloat_CheckExact(alpha.ptr())) return nb::none();
    const auto tensors = look_at<7>({q, k, v, d_out, d_q, d_k, d_v});
    if (!tensors) return nb::none();
    const auto& [of_q, of_k, of_v, of_d_out, of_d_q, of_d_k, of_d_v] = *tensors;
    if (!same_extents(of_q, of_d_out) || !same_extents(of_k, of_v)) return nb::none();
    const Alphas alphas{.number = PyFloat_AS_DOUBLE(alpha.ptr())};
    const auto found = calls_.find(key_of(of_q, of_k, alphas, causal, scale, k_keep, window, packed));
    if (found == calls_.end()) return nb::none();
    const auto& problem = nb::cast<const Problem&>(found->second.problem);
    if (notice.problem() != problem.key()) return nb::none();
    const int32_t device = of_q.device.device_id;
    void* stream = nullptr;
    if (exchange_->current_stream(dlpack::kCuda, device, &stream) != 0) return unknown();
    if (is_captured(stream)) return nb::none();
    const Managed workspace = allocate(problem.backward_bytes(store_bytes), device);
    if (!workspace) return unknown();
    problem.backward(true, false, address(of_q), address(of_k), address(of_v), found->second.fixed, store,
                     store_bytes, address(of_d_out), address(of_d_q), address(of_d_k), address(of_d_v), 0, 0,
                     0, address(workspace->tensor), reinterpret_cast<uintptr_t>(stream), {}, nullptr);
    std::optional<int64_t> entries;
    {
      const nb::gil_scoped_release release;
      entries = notice.entries(static_cast<CUstream_st*>(stream));
    }
    return nb::bool_(entries && problem.holds(store_bytes, *entries));
  }

 private:
  struct Alphas {
    double number = 0;      // or minus the entries of a tensor
    uintptr_t address = 0;  // of the tensor's
  };
  struct Call {
    nb::object problem;
    uintptr_t fixed = 0;
  };
  struct Destroy {
    void operator()(dlpack::ManagedTensor* tensor) const { tensor->destroy(tensor); }
  };
  using Managed = std::unique_ptr<dlpack::ManagedTensor, Destroy>;
  using Key = std::array<int64_t, 14>;
  static constexpr size_t kMost = 1024;

  static bool is_captured(void* stream) {
    cudaStreamCaptureStatus status{};
    gpu::check_cuda(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status), "look for a capture");
    return status != cudaStreamCaptureStatusNone;
  }
  static nb::object unknown() {
    PyErr_Clear();
    return nb::none();
  }
  static bool same_extents(const dlpack::Tensor& a, const dlpack::Tensor& b) {
    return std::equal(a.shape, a.shape + 4, b.shape);
  }
  static uintptr_t address(const dlpack::Tensor& tensor) {
    return reinterpret_cast<uintptr_t>(tensor.data) + tensor.byte_offset;
  }
  static Key key_of(const dlpack::Tensor& q, const dlpack::Tensor& k, const Alphas& alphas, bool causal,
                    double scale, int64_t k_keep, int64_t window, int64_t packed) {
    return {q.device.device_id,
            q.dtype.code * 256 + q.dtype.bits,
            q.shape[0],
            q.shape[1],
            q.shape[2],
            q.shape[3],
            k.shape[1],
            k.shape[2],
            std::bit_cast<int64_t>(alphas.number),
            std::bit_cast<int64_t>(scale),
            k_keep,
            int64_t{causal},
            window,
            packed};
  }

  bool look_at(nb::handle object, dlpack::Tensor& tensor) const {
    if (!PyObject_TypeCheck(object.ptr(), reinterpret_cast<PyTypeObject*>(type_.ptr()))) return false;
    if (exchange_->tensor_from_object(object.ptr(), &tensor) == 0) return true;
    PyErr_Clear();
    return false;
  }

  // Of a number, or of a tensor of one dimension and float32 on the GPU of q.
  std::optional<Alphas> alphas_of(nb::handle alpha, const dlpack::Tensor& q) const {
    if (PyFloat_CheckExact(alpha.ptr())) return Alphas{.number = PyFloat_AS_DOUBLE(alpha.ptr())};
    dlpack::Tensor t;
    if (!look_at(alpha, t) || t.ndim != 1 || t.device.device_type != dlpack::kCuda ||
        t.device.device_id != q.device.device_id || t.dtype.code != dlpack::kFloat || t.dtype.bits != 32 ||
        (t.strides != nullptr && t.shape[0] > 1 && t.strides[0] != 1))
      return std::nullopt;
    return Alphas{.number = -static_cast<double>(t.shape[0]), .address = address(t)};
  }

  // Tensors of four dimensions, one dtype and one GPU, contiguous and aligned; or nothing.
  template <size_t kTensors>
  std::optional<std::array<dlpack::Tensor, kTensors>> look_at(
      const std::array<nb::handle, kTensors>& objects) const {
    std::array<dlpack::Tensor, kTensors> tensors;
    for (size_t i = 0; i < kTensors; ++i) {
      dlpack::Tensor& t = tensors[i];
      if (!look_at(objects[i], t)) return std::nullopt;
      const dlpack::Tensor& first = tensors[0];
      if (t.ndim != 4 || t.device.device_type != dlpack::kCuda ||
          t.device.device_id != first.device.device_id || t.dtype.code != first.dtype.code ||
          t.dtype.bits != first.dtype.bits || t.dtype.lanes != 1 || address(t) % 16 != 0)
        return std::nullopt;
      int64_t stride = 1;
      for (int d = 3; d >= 0; stride *= t.shape[d--])
        if (t.strides != nullptr && t.shape[d] != 1 && t.strides[d] != stride) return std::nullopt;
    }
    return tensors;
  }

  Managed allocate(int64_t bytes, int32_t device) const {
    dlpack::Tensor like{};
    like.device = {dlpack::kCuda, device};
    like.ndim = 1;
    like.dtype = {dlpack::kUnsigned, 8, 1};
    like.shape = &bytes;
    dlpack::ManagedTensor* made = nullptr;
    const auto ignore = [](void*, const char*, const char*) {};
    return Managed(exchange_->allocate(&like, &made, nullptr, ignore) == 0 ? made : nullptr);
  }

  nb::type_object type_;
  const dlpack::Exchange* exchange_;
  std::map<Key, Call> calls_;
};

}  // namespace splash::python
