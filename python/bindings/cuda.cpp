// Exact entmax attention and entmax of rows in a GPU's memory. Addresses and streams come as integers:
// PyTorch gives them in a tenth of the time that DLPack takes, and the callers have checked devices, dtypes,
// extents and contiguity.

#include <array>
#include <mutex>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "core/attention_spec.h"
#include "core/dtype.h"
#include "gpu/compute_capability.h"
#include "gpu/device.h"
#include "gpu/entmax/entmax.h"
#include "gpu/entmax/support/store.h"
#include "python/bindings/bindings.h"

#if SPLASH_HAVE_CUDA
#include "core/round.h"
#include "gpu/cuda_check.h"
#include "gpu/engine/memory.h"
#include "gpu/engine/runs.h"
#include "gpu/entmax/arguments/alphas.h"
#include "gpu/entmax/arguments/head_order.h"
#include "gpu/entmax/backward/backward.h"
#include "gpu/entmax/checks.h"
#include "gpu/entmax/forward.h"
#include "gpu/entmax/rows/rows.h"
#include "gpu/entmax/support/notice.h"
#include "python/bindings/repeated_calls.h"
#endif

namespace splash::python {

#if SPLASH_HAVE_CUDA
namespace {

using namespace gpu;

// Asked for once, for that takes longer than a call.
DeviceInfo info_of(int device) {
  static std::mutex mutex;
  static std::vector<DeviceInfo> known;
  const std::scoped_lock lock(mutex);
  const auto place = static_cast<size_t>(device);
  if (place >= known.size()) known = list_devices();
  return known.at(place);
}

// What was measured on the device for the problem; the default where nothing was.
entmax::Tuning tuning_of(const AttentionSpec& spec, Dtype dtype, int device) {
  if (device_unavailable_reason().empty()) return entmax::tuned_for(spec, dtype, info_of(device));
  return {};
}

// Addresses of what belongs to one call, or 0: tau_offsets, a k_keep for each head, sinks, dropout's seed, a
// bias.
using Tables = std::array<uintptr_t, 5>;

// A problem on one device, made once for all its calls, each of which costs little on the host.
class DeviceProblem {
 public:
  // mask: addresses of its tables, how many there are of positions, and the same of pairs. alpha_checked:
  // whether every alpha is known to be above 1 and at most 2; else heads with another one get NaN.
  // given_thresholds: whether forward gets tau_offsets. Throws Unsupported (Python's NotImplementedError)
  // where the kernels do not take the problem, whether or not there is a device.
  DeviceProblem(AttentionSpec spec, int device, std::string_view dtype, bool alpha_checked,
                bool given_thresholds, const std::array<uintptr_t, 7>& mask)
      : spec_(taken(std::move(spec), dtype)),
        device_(device),
        dtype_(dtype_from_string(dtype)),
        alpha_checked_(alpha_checked),
        given_thresholds_(given_thresholds),
        tuning_(tuning_of(spec_, dtype_, device)),
        may_leave_rows_(
            entmax::may_leave_rows(spec_, entmax::choose_path(spec_, dtype_, entmax::ForwardPath::fastest,
                                                              compute_capability_of(info_of(device)), tuning_,
                                                              given_thresholds || mask[5] != 0))),
        mask_{.ranges = at<const int32_t>(mask[0]),
              .q_positions = at<const int32_t>(mask[1]),
              .k_positions = at<const int32_t>(mask[2]),
              .q_tables = static_cast<int>(mask[3]),
              .k_tables = static_cast<int>(mask[4]),
              .pairs = at<const uint64_t>(mask[5]),
              .pair_tables = static_cast<int>(mask[6])},
        key_(entmax::store_key(spec_, dtype_)) {}

  // Of the memory that one forward needs for itself.
  int64_t workspace_bytes() const {
    return alphas_place() + round_up(alphas() * int64_t{sizeof(float)}, 256);
  }

  std::string tuning() const { return to_string(tuning_); }

  // What keeps the problem from the faster path that its GPU has; empty: nothing does, or there is no such
  // path.
  std::string portable_because() const {
    if (compute_capability_of(info_of(device_)) != 90) return "";
    return mask_.pairs != nullptr ? "a mask of pairs"
                                  : entmax::not_on_hopper(spec_, dtype_, given_thresholds_);
  }

  // all_rows: rows with broad supports are stored too, else left to backward's dense products. store: of
  // store_bytes, or 0, where nothing is kept. notice: learns how many entries were to be stored; or null.
  void forward(bool all_rows, uintptr_t q, uintptr_t k, uintptr_t v, uintptr_t alpha, uintptr_t out,
               uintptr_t store, int64_t store_bytes, uintptr_t workspace, uintptr_t stream_address,
               const Tables& tables, const entmax::Notice* notice) const {
    const DeviceScope scope(device_);
    auto* const stream = at<CUstream_st>(stream_address);
    const bool leaves_rows = may_leave_rows_ && !all_rows;
    entmax::ForwardArguments arguments{
        .q = at(q),
        .k = at(k),
        .v = at(v),
        .out = at(out),
        .alpha = at<const float>(alpha),
        .mask = mask_,
        .head_k_keep = at<const int>(tables[1]),
        .tau_offsets = at<const float>(tables[0]),
        .sinks = at<const float>(tables[2]),
        .dropout_seed = at<const uint64_t>(tables[3]),
        .bias = at<const float>(tables[4]),
        .stored = leaves_rows ? entmax::StoredRows::sparse : entmax::StoredRows::all,
        .workspace = at(workspace),
        .stream = stream,
        .tuning = tuning_};
    if (notice != nullptr) arguments.notice = notice->word();
    float* taken = at<float>(workspace + static_cast<uintptr_t>(alphas_place()));
    if (store != 0) {
      const entmax::Store parts(spec_.shape, at(store), store_bytes);
      if (leaves_rows) {
        arguments.begin = {parts.header, entmax::empty_header(parts, key_)};
      } else {
        entmax::begin_store(parts, key_, stream);
      }
      arguments.tau = parts.tau;
      arguments.support = parts.support;
      arguments.unstored_queries = parts.unstored_queries;
      arguments.unstored_counts = parts.unstored_counts;
      taken = parts.alphas;
    }
    if (!alpha_checked_) {
      entmax::take_alphas(at<const float>(alpha), alphas(), taken, stream);
      arguments.alpha = taken;
    }
    entmax::enqueue_forward(spec_, dtype_, arguments);
    const int64_t row_bytes = spec_.shape.q_len * int64_t{sizeof(float)};
    refuse({{query_result(out), {arguments.tau, spec_.shape.q_heads, row_bytes}}}, alpha, spec_.shape.batch,
           stream);
  }

  // Addresses of tau, counts, offsets, columns and excess, from the store's, and how many entries it holds.
  std::array<int64_t, 6> store_places(int64_t store_bytes) const {
    const entmax::Store parts(spec_.shape, nullptr, store_bytes);
    const auto place = [](const void* part) {
      return static_cast<int64_t>(reinterpret_cast<uintptr_t>(part));
    };
    return {place(parts.tau),
            place(parts.support.counts),
            place(parts.support.offsets),
            place(parts.support.columns),
            place(parts.support.excess),
            parts.support.capacity};
  }

  uint64_t key() const { return key_; }

  // Whether a store of so many bytes holds so many entries. Below 0: backward of another problem was given
  // the store, and emptied it.
  bool holds(int64_t store_bytes, int64_t entries) const {
    return 0 <= entries && entries <= entmax::Store(spec_.shape, nullptr, store_bytes).support.capacity;
  }

  // Entries that forward's support has; where the store holds fewer, some rows are not in it. Waits for the
  // stream.
  int64_t entries(uintptr_t store, int64_t store_bytes, uintptr_t stream) const {
    const nb::gil_scoped_release release;
    const DeviceScope scope(device_);
    const entmax::Store parts(spec_.shape, at(store), store_bytes);
    return static_cast<int64_t>(entmax::read_store(parts, key_, at<CUstream_st>(stream)).used);
  }

  int64_t backward_bytes(int64_t store_bytes) const {
    const entmax::Store parts(spec_.shape, nullptr, store_bytes);
    return entmax::backward_workspace_bytes(spec_, dtype_, parts.support.capacity, may_leave_rows_, tuning_);
  }

  // Of a store that entries() found whole. unseen: nobody has looked, and of a store that is not whole the
  // gradients lack something, or with `for_good`, where nobody ever will, as in a graph's capture, become
  // NaN. tables: forward's. d_alpha, d_sinks, d_bias: or 0. d_q_done: recorded where d_q is there; or null.
  void backward(bool unseen, bool for_good, uintptr_t q, uintptr_t k, uintptr_t v, uintptr_t alpha,
                uintptr_t store, int64_t store_bytes, uintptr_t d_out, uintptr_t d_q, uintptr_t d_k,
                uintptr_t d_v, uintptr_t d_alpha, uintptr_t d_sinks, uintptr_t d_bias, uintptr_t workspace,
                uintptr_t stream_address, const Tables& tables, const StreamPoint* d_q_done) const {
    const DeviceScope scope(device_);
    auto* const stream = at<CUstream_st>(stream_address);
    const entmax::Store parts(spec_.shape, at(store), store_bytes);
    const bool changes_d_q = !alpha_checked_ || for_good;  // behind the kernels
    if (unseen) entmax::admit_store(parts, key_, stream);
    entmax::enqueue_backward(spec_, dtype_,
                             {.q = at(q),
                              .k = at(k),
                              .v = at(v),
                              .d_out = at(d_out),
                              .support = parts.support,
                              .unstored = may_leave_rows_ ? parts.unstored() : entmax::UnstoredRows{},
                              .mask = mask_,
                              .alpha = alpha_checked_ ? at<const float>(alpha) : parts.alphas,
                              .tau_offsets = at<const float>(tables[0]),
                              .tau = parts.tau,
                              .sinks = at<const float>(tables[2]),
                              .dropout_seed = at<const uint64_t>(tables[3]),
                              .bias = at<const float>(tables[4]),
                              .d_q = at(d_q),
                              .d_k = at(d_k),
                              .d_v = at(d_v),
                              .d_alpha = at<float>(d_alpha),
                              .d_sinks = at<float>(d_sinks),
                              .d_bias = at<float>(d_bias),
                              .d_q_done = changes_d_q ? nullptr : d_q_done,
                              .workspace = at(workspace),
                              .stream = stream,
                              .tuning = tuning_});
    const int64_t bias_bytes = spec_.bias.distances * int64_t{sizeof(float)};
    const std::array<entmax::HeadResult, 4> of_inputs{query_result(d_q), key_result(d_k), key_result(d_v)};
    const std::array<entmax::HeadResult, 4> of_heads{{{at(d_alpha), spec_.shape.q_heads, sizeof(float)},
                                                      {at(d_sinks), spec_.shape.q_heads, sizeof(float)},
                                                      {at(d_bias), spec_.shape.q_heads, bias_bytes}}};
    refuse(of_inputs, alpha, spec_.shape.batch, stream);
    refuse(of_heads, alpha, 1, stream);
    if (for_good) {
      entmax::refuse_store(parts, spec_.shape.batch, of_inputs, stream);
      entmax::refuse_store(parts, 1, of_heads, stream);
    }
    if (changes_d_q && d_q_done != nullptr) d_q_done->record(stream);
  }

 private:
  static AttentionSpec taken(AttentionSpec spec, std::string_view dtype) {
    entmax::require_forward(spec, dtype_from_string(dtype));
    return spec;
  }
  int alphas() const { return static_cast<int>(spec_.normalizer.alpha.size()); }
  int64_t alphas_place() const {
    return round_up(entmax::forward_workspace_bytes(spec_, dtype_, tuning_), 256);
  }

  entmax::HeadResult query_result(uintptr_t data) const {
    const AttentionShape& s = spec_.shape;
    return {at(data), s.q_heads, s.q_len * s.head_dim * bytes_of(dtype_)};
  }
  entmax::HeadResult key_result(uintptr_t data) const {
    const AttentionShape& s = spec_.shape;
    return {at(data), s.kv_heads, s.kv_len * s.head_dim * bytes_of(dtype_)};
  }
  void refuse(const std::array<entmax::HeadResult, 4>& results, uintptr_t alpha, int64_t batch,
              CUstream_st* stream) const {
    if (alpha_checked_) return;
    entmax::refuse_heads(at<const float>(alpha), alphas(), batch, spec_.shape.q_heads, results, stream);
  }

  AttentionSpec spec_;
  int device_;
  Dtype dtype_;
  bool alpha_checked_, given_thresholds_;
  entmax::Tuning tuning_;
  bool may_leave_rows_;
  entmax::DeviceMask mask_;
  uint64_t key_;
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

// Where a tensor's first element is, and how many elements lie between two batch entries, heads and rows.
using Place = std::tuple<uintptr_t, int64_t, int64_t, int64_t>;

template <class Element>
entmax::HeadRows<Element> rows_at(const Place& place) {
  const auto [data, batch, head, row] = place;
  return {at<Element>(data), batch, head, row};
}

// shape: batch, heads, rows, head_dim.
void reorder(std::string_view dtype, int device, const std::array<int, 4>& shape, const Place& from,
             const Place& to, uintptr_t factors, int factor_count, const std::optional<Place>& beside,
             uintptr_t sums, uintptr_t stream) {
  const DeviceScope scope(device);
  entmax::HeadOrder order{.from = rows_at<const void>(from),
                          .to = rows_at<void>(to),
                          .batch = shape[0],
                          .heads = shape[1],
                          .rows = shape[2],
                          .head_dim = shape[3],
                          .factors = at<const float>(factors),
                          .factor_count = factor_count,
                          .sums = at<float>(sums)};
  if (beside) order.beside = rows_at<const void>(*beside);
  entmax::reorder_heads(order, dtype_from_string(dtype), at<CUstream_st>(stream));
}

// Of what the stream, on this device, has been given so far.
void make_point(StreamPoint* self, int device, uintptr_t stream) {
  const DeviceScope scope(device);
  (new (self) StreamPoint)->record(at<CUstream_st>(stream));
}

void record_on(const StreamPoint& self, uintptr_t stream) {
  self.record(at<CUstream_st>(stream));
}

void await_by(const StreamPoint& self, uintptr_t stream) {
  self.await(at<CUstream_st>(stream));
}

std::optional<int64_t> told_entries(const entmax::Notice& self, uintptr_t behind) {
  const nb::gil_scoped_release release;
  return self.entries(at<CUstream_st>(behind));
}

void copy(const std::vector<std::array<int64_t, 6>>& given, uintptr_t stream) {
  std::vector<Runs> all;
  all.reserve(given.size());
  for (const auto& [to, to_apart, from, from_apart, bytes, count] : given)
    all.push_back({at(static_cast<uintptr_t>(to)), to_apart, at(static_cast<uintptr_t>(from)), from_apart,
                   bytes, count});
  copy_runs(all, at<CUstream_st>(stream));
}

}  // namespace
#endif

void bind_cuda(nb::module_& module) {
  module.attr("has_cuda") = SPLASH_HAVE_CUDA != 0;
  module.attr("LEAST_ATTENTION_ALPHA") = gpu::entmax::kLeastAttentionAlpha;  // that the kernels take
  module.attr("MOST_ATTENTION_ALPHA") = gpu::entmax::kMostAttentionAlpha;
  // Bytes of a store: these, and so many a row, a head and an entry.
  using Size = gpu::entmax::StoreSize;
  module.attr("store_size") =
      nb::make_tuple(Size::kBytes, Size::kBytesARow, Size::kBytesAHead, Size::kBytesAnEntry);
  module.def("require_device", &gpu::require_device,
             "Raises RuntimeError unless the device's kernels are in here.");
#if SPLASH_HAVE_CUDA
  nb::class_<DeviceProblem>(module, "DeviceProblem")
      .def(nb::init<AttentionSpec, int, std::string_view, bool, bool, const std::array<uintptr_t, 7>&>())
      .def("workspace_bytes", &DeviceProblem::workspace_bytes)
      .def_prop_ro("tuning", &DeviceProblem::tuning, "The knobs in use: 'default', or KNOB=VALUE,KNOB=VALUE.")
      .def_prop_ro("portable_because", &DeviceProblem::portable_because,
                   "What keeps the problem from the faster path that its GPU has; '' where nothing does.")
      .def("forward", &DeviceProblem::forward, nb::arg("all_rows"), nb::arg("q"), nb::arg("k"), nb::arg("v"),
           nb::arg("alpha"), nb::arg("out"), nb::arg("store"), nb::arg("store_bytes"), nb::arg("workspace"),
           nb::arg("stream"), nb::arg("tables"), nb::arg("notice").none())
      .def("store_places", &DeviceProblem::store_places,
           "Bytes to tau, counts, offsets, columns and excess; and how many entries there is room for.")
      .def_prop_ro("key", &DeviceProblem::key, "Tells problems apart.")
      .def("holds", &DeviceProblem::holds, "Whether a store of so many bytes holds so many entries.")
      .def("entries", &DeviceProblem::entries, "Of the support; waits for the stream.")
      .def("backward_bytes", &DeviceProblem::backward_bytes)
      .def("backward", &DeviceProblem::backward, nb::arg("unseen"), nb::arg("for_good"), nb::arg("q"),
           nb::arg("k"), nb::arg("v"), nb::arg("alpha"), nb::arg("store"), nb::arg("store_bytes"),
           nb::arg("d_out"), nb::arg("d_q"), nb::arg("d_k"), nb::arg("d_v"), nb::arg("d_alpha"),
           nb::arg("d_sinks"), nb::arg("d_bias"), nb::arg("workspace"), nb::arg("stream"), nb::arg("tables"),
           nb::arg("d_q_done").none());
  using Repeated = RepeatedCalls<DeviceProblem, entmax::Notice>;
  nb::class_<Repeated>(module, "RepeatedCalls")
      .def(nb::init<const nb::type_object&>())
      .def("add", &Repeated::add)
      .def("forward", &Repeated::forward,
           "None where no such call was added; else (store, Notice or None), or True where nothing is kept.")
      .def("backward", &Repeated::backward,
           "None where no such call was added; else whether the gradients are those of the whole support.");
  nb::class_<entmax::Notice>(module, "Notice")
      .def(nb::init<uint64_t>())
      .def_prop_ro("problem", &entmax::Notice::problem, "The key of what the forward computes.")
      .def("entries", &told_entries,
           "Waits for the forward, which tells how many entries it wanted to store; None where that is not "
           "known. "
           "Behind: a stream.");
  nb::class_<StreamPoint>(module, "StreamPoint")
      .def("__init__", &make_point)
      .def("record", &record_on, "Of what the stream has been given so far.")
      .def("await_by", &await_by, "The stream waits for it.");
  module.def("copy_runs", &copy,
             "gpu/engine/runs.h: each (to, to_apart, from, from_apart, bytes, count); a stream.");
  module.def(
      "reorder_heads", &reorder,
      "gpu/entmax/arguments/head_order.h: dtype, device, (batch, heads, rows, head_dim), then of from and to "
      "(address, and elements between batch entries, heads, rows); factors, their count; of beside the "
      "same, or None; sums; a stream.",
      nb::arg("dtype"), nb::arg("device"), nb::arg("shape"), nb::arg("from"), nb::arg("to"),
      nb::arg("factors"), nb::arg("factor_count"), nb::arg("beside").none(), nb::arg("sums"),
      nb::arg("stream"));
  module.def("sums_per_head", &entmax::sums_per_head);
  module.attr("MOST_ORDERED_HEADS") = entmax::kMostOrderedHeads;
  module.def("cuda_entmax", &rows);
  module.def("cuda_entmax_gradient", &rows_gradient);
#endif
}

}  // namespace splash::python
