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
#include <utility>

#include "core/attention_spec.h"
#include "core/dtype.h"
#include "gpu/device.h"
#include "python/bindings/bindings.h"

#if SPLASH_HAVE_CUDA
#include "gpu/cuda_check.h"
#include "gpu/engine/round.h"
#include "gpu/entmax/alphas.h"
#include "gpu/entmax/backward.h"
#include "gpu/entmax/forward.h"
#include "gpu/entmax/rows.h"
#include "python/bindings/repeated_calls.h"
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
    capacity = std::max<int64_t>(capacity, 0);
    used = take(sizeof(unsigned long long));
    alphas = take(static_cast<int64_t>(spec.normalizer.alpha.size() * sizeof(float)));
    tau = take(spec.shape.rows() * int64_t{sizeof(float)});
    counts = take(spec.shape.rows() * int64_t{sizeof(int32_t)});
    offsets = take(spec.shape.rows() * int64_t{sizeof(int64_t)});
    columns = take(capacity * int64_t{sizeof(int32_t)});
    excess = take(capacity * int64_t{sizeof(float)});
    workspace = take(entmax::forward_workspace_bytes(spec, dtype));
  }
  int64_t bytes = 0, used, alphas, tau, counts, offsets, columns, excess, workspace;
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

// A problem on one device, made once for all its calls, each of which costs little on the host.
class DeviceProblem {
 public:
  // mask: addresses of its tables, and how many there are of positions. alpha_checked: whether every alpha is
  // known to be above 1 and at most 2; else heads with another one get NaN.
  DeviceProblem(AttentionSpec spec, int device, std::string_view dtype, bool alpha_checked,
                const std::array<uintptr_t, 5>& mask)
      : spec_(std::move(spec)),
        device_(device),
        dtype_(dtype_from_string(dtype)),
        alpha_checked_(alpha_checked),
        may_leave_rows_(spec_.shape.head_dim <= entmax::kMostUnstoredHeadDim &&
                        entmax::choose_path(spec_, dtype_, entmax::ForwardPath::fastest,
                                            compute_capability(device)) == entmax::ForwardPath::hopper),
        mask_{.ranges = at<const int32_t>(mask[0]),
              .q_positions = at<const int32_t>(mask[1]),
              .k_positions = at<const int32_t>(mask[2]),
              .q_tables = static_cast<int>(mask[3]),
              .k_tables = static_cast<int>(mask[4])} {}

  // capacity, here and below: entries that the support has room for; -1: nothing is kept.
  int64_t store_bytes(int64_t capacity) const { return store(capacity).bytes; }
  std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t> store_places(int64_t capacity) const {
    const Store parts = store(capacity);
    return {parts.tau, parts.counts, parts.offsets, parts.columns, parts.excess};
  }
  int64_t backward_bytes(int64_t capacity, bool all_rows) const {
    return entmax::backward_workspace_bytes(spec_, dtype_, capacity, leaves_rows(all_rows));
  }

  // all_rows: rows with broad supports are stored too, else left to backward's dense products. tau, counts:
  // or 0, which is their place in the buffer, if anything is kept.
  void forward(int64_t capacity, bool all_rows, uintptr_t q, uintptr_t k, uintptr_t v, uintptr_t alpha,
               uintptr_t out, uintptr_t tau, uintptr_t counts, uintptr_t buffer, uintptr_t stream) const {
    const DeviceScope scope(device_);
    entmax::ForwardArguments arguments =
        forward_arguments(capacity, all_rows, alpha, tau, counts, buffer, stream);
    arguments.q = at(q);
    arguments.k = at(k);
    arguments.v = at(v);
    arguments.out = at(out);
    if (capacity >= 0) {
      check_cuda(cudaMemsetAsync(arguments.support.used, 0, sizeof(unsigned long long), arguments.stream),
                 "clear the number of entries");
    }
    if (!alpha_checked_)
      entmax::take_alphas(at<const float>(alpha), alphas(), at<float>(buffer + store(capacity).alphas),
                          at<CUstream_st>(stream));
    entmax::enqueue_forward(spec_, dtype_, arguments);
    refuse({{query_result(out),
             {arguments.tau, spec_.shape.q_heads, spec_.shape.q_len * int64_t{sizeof(float)}}}},
           alpha, spec_.shape.batch, stream);
  }

  // Entries that the support has, more than the capacity where they found no room. Waits for forward.
  int64_t used(uintptr_t buffer, uintptr_t stream) const {
    const nb::gil_scoped_release release;
    const DeviceScope scope(device_);
    unsigned long long entries = 0;
    check_cuda(cudaMemcpyAsync(&entries, at(buffer + store(0).used), sizeof(entries), cudaMemcpyDeviceToHost,
                               at<CUstream_st>(stream)),
               "read the number of entries");
    check_cuda(cudaStreamSynchronize(at<CUstream_st>(stream)), "wait for the number of entries");
    return static_cast<int64_t>(entries);
  }

  // After forward into the same store with the same capacity. d_alpha: or 0.
  void backward(int64_t capacity, bool all_rows, uintptr_t q, uintptr_t k, uintptr_t v, uintptr_t alpha,
                uintptr_t tau, uintptr_t counts, uintptr_t buffer, uintptr_t d_out, uintptr_t d_q,
                uintptr_t d_k, uintptr_t d_v, uintptr_t d_alpha, uintptr_t workspace,
                uintptr_t stream) const {
    const DeviceScope scope(device_);
    const entmax::ForwardArguments last =
        forward_arguments(capacity, all_rows, alpha, tau, counts, buffer, stream);
    entmax::enqueue_backward(spec_, dtype_,
                             {.q = at(q),
                              .k = at(k),
                              .v = at(v),
                              .d_out = at(d_out),
                              .support = last.support,
                              .unstored = leaves_rows(all_rows) ? entmax::unstored_rows(spec_, dtype_, last)
                                                                : entmax::UnstoredRows{},
                              .alpha = last.alpha,
                              .d_q = at(d_q),
                              .d_k = at(d_k),
                              .d_v = at(d_v),
                              .d_alpha = at<float>(d_alpha),
                              .workspace = at(workspace),
                              .stream = last.stream});
    refuse({{query_result(d_q), key_result(d_k), key_result(d_v)}}, alpha, spec_.shape.batch, stream);
    refuse({{{at(d_alpha), spec_.shape.q_heads, sizeof(float)}}}, alpha, 1, stream);
  }

 private:
  Store store(int64_t capacity) const { return {spec_, dtype_, capacity}; }
  bool leaves_rows(bool all_rows) const { return may_leave_rows_ && !all_rows; }
  int alphas() const { return static_cast<int>(spec_.normalizer.alpha.size()); }

  entmax::HeadResult query_result(uintptr_t data) const {
    const AttentionShape& s = spec_.shape;
    return {at(data), s.q_heads, s.q_len * s.head_dim * bytes_of(dtype_)};
  }
  entmax::HeadResult key_result(uintptr_t data) const {
    const AttentionShape& s = spec_.shape;
    return {at(data), s.kv_heads, s.kv_len * s.head_dim * bytes_of(dtype_)};
  }
  void refuse(const std::array<entmax::HeadResult, 4>& results, uintptr_t alpha, int64_t batch,
              uintptr_t stream) const {
    if (alpha_checked_) return;
    entmax::refuse_heads(at<const float>(alpha), alphas(), batch, spec_.shape.q_heads, results,
                         at<CUstream_st>(stream));
  }

  // But for q, k, v and out.
  entmax::ForwardArguments forward_arguments(int64_t capacity, bool all_rows, uintptr_t alpha, uintptr_t tau,
                                             uintptr_t counts, uintptr_t buffer, uintptr_t stream) const {
    const Store parts = store(capacity);
    entmax::ForwardArguments arguments{
        .alpha = at<const float>(alpha_checked_ ? alpha : buffer + parts.alphas),
        .mask = mask_,
        .tau = at<float>(tau != 0 || capacity < 0 ? tau : buffer + parts.tau),
        .stored = leaves_rows(all_rows) ? entmax::StoredRows::sparse : entmax::StoredRows::all,
        .workspace = at(buffer + parts.workspace),
        .stream = at<CUstream_st>(stream)};
    if (capacity >= 0) {
      arguments.support = {.capacity = capacity,
                           .used = at<unsigned long long>(buffer + parts.used),
                           .offsets = at<int64_t>(buffer + parts.offsets),
                           .counts = at<int32_t>(counts != 0 ? counts : buffer + parts.counts),
                           .columns = at<int32_t>(buffer + parts.columns),
                           .excess = at<float>(buffer + parts.excess)};
    }
    return arguments;
  }

  AttentionSpec spec_;
  int device_;
  Dtype dtype_;
  bool alpha_checked_, may_leave_rows_;
  entmax::DeviceMask mask_;
};

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
  nb::class_<DeviceProblem>(module, "DeviceProblem")
      .def(nb::init<AttentionSpec, int, std::string_view, bool, const std::array<uintptr_t, 5>&>())
      .def("store_bytes", &DeviceProblem::store_bytes)
      .def("store_places", &DeviceProblem::store_places, "Bytes to tau, counts, offsets, columns and excess.")
      .def("backward_bytes", &DeviceProblem::backward_bytes)
      .def("forward", &DeviceProblem::forward)
      .def("used", &DeviceProblem::used, "Entries of the support; waits for forward.")
      .def("backward", &DeviceProblem::backward);
  using Repeated = RepeatedCalls<DeviceProblem>;
  nb::class_<Repeated>(module, "RepeatedCalls")
      .def(nb::init<const nb::type_object&>())
      .def("add", &Repeated::add)
      .def("clear", &Repeated::clear)
      .def("forward", &Repeated::forward,
           "None where no such call was added; else (store, capacity), or True where nothing is kept.");
  module.def("cuda_entmax", &rows);
  module.def("cuda_entmax_gradient", &rows_gradient);
#endif
}

}  // namespace splash::python
