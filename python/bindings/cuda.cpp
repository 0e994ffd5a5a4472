// Exact entmax attention and entmax of rows in a GPU's memory. Addresses and streams come as integers:
// PyTorch gives them in a tenth of the time that DLPack takes, and the callers have checked devices, dtypes,
// extents and contiguity.

#include <algorithm>
#include <array>
#include <atomic>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <string_view>
#include <tuple>

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

// 90 for 9.0, of each device that was asked for.
int compute_capability(int device) {
  static std::array<std::atomic<int>, 64> known{};
  const auto place = static_cast<size_t>(device);
  if (place < known.size() && known[place] != 0) return known[place];
  const DeviceInfo info = list_devices().at(place);
  const int capability = 10 * info.compute_major + info.compute_minor;
  if (place < known.size()) known[place] = capability;
  return capability;
}

// What both passes take, in the order in which Python gives it.
struct Call {
  int device = 0;
  Dtype dtype = Dtype::bf16;
  int64_t capacity = -1;  // entries that the support has room for; -1: nothing is kept
  bool all_rows = false;  // rows with broad supports are stored too, else left to backward's dense products
  uintptr_t q = 0, k = 0, v = 0, alpha = 0, tau = 0, counts = 0, buffer = 0, stream = 0;
  entmax::DeviceMask mask{};
};

Call make_call(int device, std::string_view dtype, int64_t capacity, bool all_rows,
               const std::array<uintptr_t, 8>& addresses, const std::array<uintptr_t, 5>& mask) {
  return {.device = device,
          .dtype = dtype_from_string(dtype),
          .capacity = capacity,
          .all_rows = all_rows,
          .q = addresses[0],
          .k = addresses[1],
          .v = addresses[2],
          .alpha = addresses[3],
          .tau = addresses[4],
          .counts = addresses[5],
          .buffer = addresses[6],
          .stream = addresses[7],
          .mask = {.ranges = at<const int32_t>(mask[0]),
                   .q_positions = at<const int32_t>(mask[1]),
                   .k_positions = at<const int32_t>(mask[2]),
                   .q_tables = static_cast<int>(mask[3]),
                   .k_tables = static_cast<int>(mask[4])}};
}

bool leaves_broad_rows(const AttentionSpec& spec, Dtype dtype, int device, bool all_rows) {
  if (all_rows || spec.shape.head_dim > entmax::kMostUnstoredHeadDim) return false;
  return entmax::choose_path(spec, dtype, entmax::ForwardPath::fastest, compute_capability(device)) ==
         entmax::ForwardPath::hopper;
}

entmax::ForwardArguments forward_arguments(const AttentionSpec& spec, const Call& call, uintptr_t out) {
  const Store store(spec, call.dtype, std::max<int64_t>(call.capacity, 0));
  const bool leaves = leaves_broad_rows(spec, call.dtype, call.device, call.all_rows);
  entmax::ForwardArguments arguments{.q = at(call.q),
                                     .k = at(call.k),
                                     .v = at(call.v),
                                     .out = at(out),
                                     .alpha = at<const float>(call.alpha),
                                     .mask = call.mask,
                                     .tau = at<float>(call.tau),
                                     .stored = leaves ? entmax::StoredRows::sparse : entmax::StoredRows::all,
                                     .workspace = at(call.buffer + store.workspace),
                                     .stream = at<CUstream_st>(call.stream)};
  if (call.capacity >= 0) {
    arguments.support = {.capacity = call.capacity,
                         .used = at<unsigned long long>(call.buffer + store.used),
                         .offsets = at<int64_t>(call.buffer + store.offsets),
                         .counts = at<int32_t>(call.counts),
                         .columns = at<int32_t>(call.buffer + store.columns),
                         .excess = at<float>(call.buffer + store.excess)};
  }
  return arguments;
}

void forward(const AttentionSpec& spec, const Call& call, uintptr_t out) {
  const DeviceScope scope(call.device);
  const entmax::ForwardArguments arguments = forward_arguments(spec, call, out);
  if (call.capacity >= 0) {
    check_cuda(cudaMemsetAsync(arguments.support.used, 0, sizeof(unsigned long long), arguments.stream),
               "clear the number of entries");
  }
  entmax::enqueue_forward(spec, call.dtype, arguments);
}

void backward(const AttentionSpec& spec, const Call& call, uintptr_t d_out, uintptr_t d_q, uintptr_t d_k,
              uintptr_t d_v, uintptr_t d_alpha, uintptr_t workspace) {
  const DeviceScope scope(call.device);
  const entmax::ForwardArguments last = forward_arguments(spec, call, 0);
  const bool leaves = last.stored == entmax::StoredRows::sparse;
  entmax::enqueue_backward(
      spec, call.dtype,
      {.q = at(call.q),
       .k = at(call.k),
       .v = at(call.v),
       .d_out = at(d_out),
       .support = last.support,
       .unstored = leaves ? entmax::unstored_rows(spec, call.dtype, last) : entmax::UnstoredRows{},
       .alpha = at<const float>(call.alpha),
       .d_q = at(d_q),
       .d_k = at(d_k),
       .d_v = at(d_v),
       .d_alpha = at<float>(d_alpha),
       .workspace = at(workspace),
       .stream = at<CUstream_st>(call.stream)});
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

void rows_gradient(std::string_view dtype, int device, uintptr_t p, uintptr_t d_p, uintptr_t alpha,
                   int64_t alphas, int64_t rows, int64_t n, uintptr_t d_scores, uintptr_t d_alpha,
                   uintptr_t stream) {
  const DeviceScope scope(device);
  entmax::entmax_rows_gradient(dtype_from_string(dtype), at(p), at(d_p), at<const double>(alpha), alphas,
                               rows, n, at(d_scores), at<double>(d_alpha), at<CUstream_st>(stream));
}

}  // namespace
#endif

void bind_cuda(nb::module_& module) {
  module.attr("has_cuda") = SPLASH_HAVE_CUDA != 0;
  module.def("require_device", &gpu::require_device,
             "Raises RuntimeError unless the device's kernels are in here.");
#if SPLASH_HAVE_CUDA
  nb::class_<Call>(module, "CudaCall")
      .def("__init__", [](Call* self, int device, std::string_view dtype, int64_t capacity, bool all_rows,
                          const std::array<uintptr_t, 8>& addresses, const std::array<uintptr_t, 5>& mask) {
        new (self) Call(make_call(device, dtype, capacity, all_rows, addresses, mask));
      });
  module.def("cuda_store_bytes", &store_bytes);
  module.def("cuda_store_places", &store_places, "Bytes to used, offsets, columns and excess.");
  module.def("cuda_forward", &forward);
  module.def("cuda_backward_bytes", [](const AttentionSpec& spec, const Call& call) {
    return entmax::backward_workspace_bytes(spec, call.capacity,
                                            leaves_broad_rows(spec, call.dtype, call.device, call.all_rows));
  });
  module.def("cuda_backward", &backward);
  module.def("cuda_entmax", &rows);
  module.def("cuda_entmax_gradient", &rows_gradient);
#endif
}

}  // namespace splash::python
