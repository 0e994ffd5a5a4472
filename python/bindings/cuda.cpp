// Exact entmax attention and entmax of rows in a GPU's memory. Addresses and streams come as integers: PyTorch gives
// them in a tenth of the time that DLPack takes, and the callers have checked devices, dtypes, extents and contiguity.

#include <algorithm>
#include <string_view>
#include <tuple>

#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>

#include "core/attention_spec.h"
#include "core/dtype.h"
#include "gpu/device.h"
#include "python/bindings/bindings.h"

#if SPLASH_HAVE_CUDA
#include "gpu/cuda_check.h"
#include "gpu/engine/round.h"
#include "gpu/entmax/backward.h"
#include "gpu/entmax/forward.h"
#include "gpu/entmax/rows.h"
#endif

namespace splash::python {

#if SPLASH_HAVE_CUDA
namespace {

using namespace gpu;

template <class T = void>
T* at(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

// Bytes from the start of the one buffer in which forward leaves what backward needs.
struct Store {
  Store(const AttentionSpec& spec, Dtype dtype, int64_t capacity) {
    const auto take = [this](int64_t size) {
      const int64_t place = bytes;
      bytes += round_up(size, 256);
      return place;
    };
    used = take(sizeof(unsigned long long));
    offsets = take(spec.shape.rows() * int64_t{sizeof(int64_t)});
    columns = take(capacity * int64_t{sizeof(int32_t)});
    excess = take(capacity * int64_t{sizeof(float)});
    workspace = take(entmax::forward_workspace_bytes(spec, dtype));
  }
  int64_t bytes = 0, used, offsets, columns, excess, workspace;
};

// How one forward keeps its support; capacity counts entries, -1 keeps nothing.
struct Kept {
  int64_t capacity = -1;
  bool all = false;  // rows with broad supports too, else they are left to backward's dense products
};

bool leaves_broad_rows(const AttentionSpec& spec, const Kept& kept) {
  return !kept.all && spec.shape.head_dim <= entmax::kMostUnstoredHeadDim;
}

entmax::ForwardArguments forward_arguments(const AttentionSpec& spec, Dtype dtype, const Kept& kept, uintptr_t q,
                                           uintptr_t k, uintptr_t v, uintptr_t out, uintptr_t alpha, uintptr_t tau,
                                           uintptr_t counts, uintptr_t buffer, uintptr_t stream) {
  const Store store(spec, dtype, std::max<int64_t>(kept.capacity, 0));
  entmax::ForwardArguments arguments{.q = at(q),
                                     .k = at(k),
                                     .v = at(v),
                                     .out = at(out),
                                     .alpha = at<const float>(alpha),
                                     .tau = at<float>(tau),
                                     .stored = leaves_broad_rows(spec, kept) ? entmax::StoredRows::sparse
                                                                             : entmax::StoredRows::all,
                                     .workspace = at(buffer + store.workspace),
                                     .stream = at<CUstream_st>(stream)};
  if (kept.capacity >= 0) {
    arguments.support = {.capacity = kept.capacity,
                         .used = at<unsigned long long>(buffer + store.used),
                         .offsets = at<int64_t>(buffer + store.offsets),
                         .counts = at<int32_t>(counts),
                         .columns = at<int32_t>(buffer + store.columns),
                         .excess = at<float>(buffer + store.excess)};
  }
  return arguments;
}

void forward(const AttentionSpec& spec, std::string_view dtype_name, int device, int64_t capacity, bool all,
             uintptr_t q, uintptr_t k, uintptr_t v, uintptr_t out, uintptr_t alpha, uintptr_t tau, uintptr_t counts,
             uintptr_t buffer, uintptr_t stream) {
  const Dtype dtype = dtype_from_string(dtype_name);
  const DeviceScope scope(device);
  const entmax::ForwardArguments arguments = forward_arguments(spec, dtype, {capacity, all}, q, k, v, out, alpha, tau,
                                                               counts, buffer, stream);
  if (capacity >= 0) {
    check_cuda(cudaMemsetAsync(arguments.support.used, 0, sizeof(unsigned long long), arguments.stream),
               "clear the number of entries");
  }
  entmax::enqueue_forward(spec, dtype, arguments);
}

void backward(const AttentionSpec& spec, std::string_view dtype_name, int device, int64_t capacity, bool all,
              uintptr_t q, uintptr_t k, uintptr_t v, uintptr_t d_out, uintptr_t alpha, uintptr_t tau,
              uintptr_t counts, uintptr_t buffer, uintptr_t d_q, uintptr_t d_k, uintptr_t d_v, uintptr_t d_alpha,
              uintptr_t workspace, uintptr_t stream) {
  const Dtype dtype = dtype_from_string(dtype_name);
  const DeviceScope scope(device);
  const Kept kept{capacity, all};
  const entmax::ForwardArguments last =
      forward_arguments(spec, dtype, kept, q, k, v, 0, alpha, tau, counts, buffer, stream);
  entmax::enqueue_backward(spec, dtype,
                           {.q = at(q),
                            .k = at(k),
                            .v = at(v),
                            .d_out = at(d_out),
                            .support = last.support,
                            .unstored = leaves_broad_rows(spec, kept) ? entmax::unstored_rows(spec, dtype, last)
                                                                      : entmax::UnstoredRows{},
                            .alpha = at<const float>(alpha),
                            .d_q = at(d_q),
                            .d_k = at(d_k),
                            .d_v = at(d_v),
                            .d_alpha = at<float>(d_alpha),
                            .workspace = at(workspace),
                            .stream = at<CUstream_st>(stream)});
}

int64_t store_bytes(const AttentionSpec& spec, std::string_view dtype, int64_t capacity) {
  return Store(spec, dtype_from_string(dtype), std::max<int64_t>(capacity, 0)).bytes;
}

std::tuple<int64_t, int64_t, int64_t, int64_t> store_places(const AttentionSpec& spec, std::string_view dtype,
                                                            int64_t capacity) {
  const Store store(spec, dtype_from_string(dtype), capacity);
  return {store.used, store.offsets, store.columns, store.excess};
}

void rows(std::string_view dtype, int device, uintptr_t scores, uintptr_t alpha, int64_t alphas, int64_t rows,
          int64_t n, uintptr_t p, uintptr_t stream) {
  const DeviceScope scope(device);
  entmax::entmax_rows(dtype_from_string(dtype), at(scores), at<const double>(alpha), alphas, rows, n, at(p),
                      at<CUstream_st>(stream));
}

void rows_gradient(std::string_view dtype, int device, uintptr_t p, uintptr_t d_p, uintptr_t alpha, int64_t alphas,
                   int64_t rows, int64_t n, uintptr_t d_scores, uintptr_t d_alpha, uintptr_t stream) {
  const DeviceScope scope(device);
  entmax::entmax_rows_gradient(dtype_from_string(dtype), at(p), at(d_p), at<const double>(alpha), alphas, rows, n,
                               at(d_scores), at<double>(d_alpha), at<CUstream_st>(stream));
}

}  // namespace
#endif

void bind_cuda(nb::module_& module) {
  module.attr("has_cuda") = SPLASH_HAVE_CUDA != 0;
  module.def("require_device", &gpu::require_device, "Raises RuntimeError unless the device's kernels are in here.");
#if SPLASH_HAVE_CUDA
  module.def("cuda_require_forward", [](const AttentionSpec& spec, std::string_view dtype) {
    entmax::require_forward(spec, dtype_from_string(dtype));
  });
  module.def("cuda_store_bytes", &store_bytes);
  module.def("cuda_store_places", &store_places, "Bytes to used, offsets, columns and excess.");
  module.def("cuda_forward", &forward);
  module.def("cuda_backward_bytes", [](const AttentionSpec& spec, int64_t capacity, bool all) {
    return entmax::backward_workspace_bytes(spec, capacity, leaves_broad_rows(spec, {capacity, all}));
  });
  module.def("cuda_backward", &backward);
  module.def("cuda_entmax", &rows);
  module.def("cuda_entmax_gradient", &rows_gradient);
#endif
}

}  // namespace splash::python
