// Decode over a paged cache: the oracle in host memory, and the kernels in a GPU's. Addresses and streams of
// the latter come as integers; the callers have checked devices, dtypes and extents.

#include "cpu_ref/decode/decode.h"

#include <algorithm>
#include <array>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "core/error.h"
#include "cpu_ref/decode/low_bit.h"
#include "gpu/decode/problem.h"
#include "python/bindings/bindings.h"

#if SPLASH_HAVE_CUDA
#include "gpu/cuda_check.h"
#include "gpu/decode/decode.h"
#endif

namespace splash::python {
namespace {

template <class T>
using HostArray = nb::ndarray<const T, nb::c_contig, nb::device::cpu>;

template <class T>
std::vector<T> copied(const HostArray<T>& array) {
  return {array.data(), array.data() + array.size()};
}

// A pool: its address, strides of pages, tokens and heads in elements, and what its numbers are multiplied
// by.
using HostPool = std::tuple<uintptr_t, std::array<int64_t, 3>, double>;

// A cache as its tensors say. sizes: pages, page_size, kv_heads, head_dim; table: [batch, width]; low_bit:
// the copies of all pages, or nothing.
cpu_ref::CacheView cache_on_cpu(std::string_view dtype, const std::array<int64_t, 4>& sizes,
                                const HostPool& keys, const HostPool& values, const HostArray<int32_t>& table,
                                const HostArray<int32_t>& lengths, const HostArray<uint8_t>& low_bit,
                                int bits) {
  const auto bytes = static_cast<int64_t>(low_bit.size());
  if (bytes > 0 && bytes != cpu_ref::low_bit_bytes(sizes[0], sizes[1], sizes[2], sizes[3], bits))
    throw InvalidArgument("low_bit has " + std::to_string(bytes) +
                          " bytes, not those of the pool's copies in " + std::to_string(bits) + " bits");
  const auto pool = [&](const HostPool& of) {
    const auto& [address, strides, factor] = of;
    return cpu_ref::Pool{.element = cpu_ref::element_from_string(dtype),
                         .data = reinterpret_cast<const void*>(address),
                         .page_stride = strides[0],
                         .token_stride = strides[1],
                         .head_stride = strides[2],
                         .scale = factor};
  };
  return {.keys = pool(keys),
          .values = pool(values),
          .pool_pages = sizes[0],
          .page_size = sizes[1],
          .kv_heads = sizes[2],
          .head_dim = sizes[3],
          .batch = static_cast<int64_t>(table.shape(0)),
          .width = static_cast<int64_t>(table.shape(1)),
          .table = copied(table),
          .lengths = copied(lengths),
          .bits = bytes > 0 ? bits : 0,
          .low_bit = low_bit.data()};
}

// from_lengths: [batch], or nothing. Writes low_bit.
void fill_on_cpu(std::string_view dtype, const std::array<int64_t, 4>& sizes, const HostPool& keys,
                 const HostArray<int32_t>& table, const HostArray<int32_t>& lengths,
                 const HostArray<int32_t>& from_lengths, int64_t most_pages,
                 const nb::ndarray<uint8_t, nb::c_contig, nb::device::cpu>& low_bit, int bits) {
  const cpu_ref::CacheView cache =
      cache_on_cpu(dtype, sizes, keys, keys, table, lengths, HostArray<uint8_t>(low_bit), bits);
  const std::vector<int32_t> from = copied(from_lengths);
  const nb::gil_scoped_release release;
  if (cache.bits > 0) cpu_ref::fill_low_bit(cache, from, most_pages, low_bit.data());
}

// Returns out, tau, maximum and support.
nb::tuple decode_on_cpu(std::string_view dtype, const std::array<int64_t, 4>& sizes, const HostPool& keys,
                        const HostPool& values, const HostArray<int32_t>& table,
                        const HostArray<int32_t>& lengths, const TensorArray<double>& q,
                        const std::vector<double>& alpha, const std::vector<double>& scale, int64_t window,
                        int64_t sinks, const HostArray<uint8_t>& low_bit, int bits) {
  const cpu_ref::CacheView cache = cache_on_cpu(dtype, sizes, keys, values, table, lengths, low_bit, bits);
  const TensorView<const double> from = view(q);
  cpu_ref::DecodeInputs inputs{Tensor<double>(from.batch, from.heads, from.length, from.dim), alpha, scale,
                               window, sinks};
  std::copy_n(from.data, from.size(), inputs.q.data());
  cpu_ref::DecodeRows rows;
  {
    const nb::gil_scoped_release release;
    rows = cpu_ref::decode_step(cache, inputs);
  }
  const std::vector<int64_t> of_rows{from.batch, from.heads, from.length};
  const auto array = [&](auto values_of_rows) {
    auto* data = values_of_rows.data();
    return numpy_over(data, of_rows, std::move(values_of_rows));
  };
  double* out = rows.out.data();
  return nb::make_tuple(numpy_over(out, {from.batch, from.heads, from.length, from.dim}, std::move(rows.out)),
                        array(std::move(rows.tau)), array(std::move(rows.maximum)),
                        array(std::move(rows.support)));
}

#if SPLASH_HAVE_CUDA
using namespace gpu;

// A cache on one device. Strides: of pages, tokens and heads. rows: dtype of queries, outputs and new keys
// where the cache is in float8; scales: addresses of such keys' and values'.
class DeviceCache {
 public:
  DeviceCache(int device, const std::array<int, 5>& sizes, uintptr_t keys,
              const std::array<int64_t, 3>& key_strides, uintptr_t values,
              const std::array<int64_t, 3>& value_strides, std::string_view rows,
              const std::array<uintptr_t, 2>& scales)
      : device_(device), cache_(cache_of(rows, sizes, keys, key_strides, values, value_strides, 0)) {
    cache_.fp8 = true;
    cache_.key_scale = at<const float>(scales[0]);
    cache_.value_scale = at<const float>(scales[1]);
    decode::check_cache(cache_);
  }
  DeviceCache(int device, std::string_view dtype, const std::array<int, 5>& sizes, uintptr_t keys,
              const std::array<int64_t, 3>& key_strides, uintptr_t values,
              const std::array<int64_t, 3>& value_strides, uintptr_t low_bit)
      : device_(device), cache_(cache_of(dtype, sizes, keys, key_strides, values, value_strides, low_bit)) {
    decode::check_cache(cache_);
  }

  int64_t low_bit_bytes() const { return decode::low_bit_bytes(cache_); }

  void fill(uintptr_t table, uintptr_t lengths, int batch, int width, uintptr_t from_lengths, int most_pages,
            uintptr_t stream) const {
    const DeviceScope scope(device_);
    decode::fill(cache_, {at<const int32_t>(table), at<const int32_t>(lengths), batch, width},
                 at<const int32_t>(from_lengths), most_pages, at<CUstream_st>(stream));
  }

  // rows: addresses of the new keys and values; strides: of batch, tokens and heads, of both.
  void append(uintptr_t table, uintptr_t lengths, int batch, int width, const std::array<uintptr_t, 2>& rows,
              const std::array<int64_t, 6>& strides, int tokens, uintptr_t stream) const {
    const DeviceScope scope(device_);
    decode::append(cache_, {at<const int32_t>(table), at<const int32_t>(lengths), batch, width},
                   {at(rows[0]), strides[0], strides[1], strides[2]},
                   {at(rows[1]), strides[3], strides[4], strides[5]}, tokens, at<CUstream_st>(stream));
  }

  // numbers: q_heads, q_len, how many alphas, how many scales, window, sinks. Strides: of batch, queries and
  // heads.
  int64_t workspace_bytes(int batch, int width, const std::array<int, 6>& numbers) const {
    const DeviceScope scope(device_);
    return decode::workspace_bytes(cache_, {nullptr, nullptr, batch, width}, inputs_of(numbers));
  }

  // outputs: addresses of out, tau, maximum, support and counts; memory: of StepInputs::broad and recent, or
  // 0.
  void decode(uintptr_t table, uintptr_t lengths, int batch, int width, const std::array<int, 6>& numbers,
              uintptr_t q, const std::array<int64_t, 3>& q_strides, const std::array<uintptr_t, 5>& outputs,
              const std::array<int64_t, 3>& out_strides, uintptr_t alpha, uintptr_t scale,
              const std::array<uintptr_t, 2>& memory, uintptr_t workspace, int64_t bytes,
              uintptr_t stream) const {
    const DeviceScope scope(device_);
    decode::StepInputs inputs = inputs_of(numbers);
    inputs.q = {at(q), q_strides[0], q_strides[1], q_strides[2]};
    inputs.out = {at(outputs[0]), out_strides[0], out_strides[1], out_strides[2]};
    inputs.alpha = at<const float>(alpha);
    inputs.scale = at<const float>(scale);
    inputs.broad = at<uint32_t>(memory[0]);
    inputs.recent = at<int32_t>(memory[1]);
    decode::decode(
        cache_, {at<const int32_t>(table), at<const int32_t>(lengths), batch, width}, inputs,
        {at<float>(outputs[1]), at<float>(outputs[2]), at<int32_t>(outputs[3]), at<int32_t>(outputs[4])},
        at(workspace), bytes, at<CUstream_st>(stream));
  }

 private:
  static decode::Cache cache_of(std::string_view dtype, const std::array<int, 5>& sizes, uintptr_t keys,
                                const std::array<int64_t, 3>& key_strides, uintptr_t values,
                                const std::array<int64_t, 3>& value_strides, uintptr_t low_bit) {
    return {.dtype = dtype_from_string(dtype),
            .pages = sizes[0],
            .page_size = sizes[1],
            .kv_heads = sizes[2],
            .head_dim = sizes[3],
            .keys = {at(keys), key_strides[0], key_strides[1], key_strides[2]},
            .values = {at(values), value_strides[0], value_strides[1], value_strides[2]},
            .bits = sizes[4],
            .low_bit = at<uint8_t>(low_bit)};
  }
  static decode::StepInputs inputs_of(const std::array<int, 6>& numbers) {
    return {.q_heads = numbers[0],
            .q_len = numbers[1],
            .alphas = numbers[2],
            .scales = numbers[3],
            .window = numbers[4],
            .sinks = numbers[5]};
  }
  int device_;
  decode::Cache cache_;
};
#endif

}  // namespace

void bind_decode(nb::module_& module) {
  module.attr("DECODE_ROWS") = gpu::decode::kRows;
  module.attr("DECODE_RECENT_WORDS") = gpu::decode::kRecentWords;
  module.def("decode_cpu", &decode_on_cpu);
  module.def("decode_fill_cpu", &fill_on_cpu);
#if SPLASH_HAVE_CUDA
  nb::class_<DeviceCache>(module, "DeviceCache")
      .def(nb::init<int, std::string_view, const std::array<int, 5>&, uintptr_t,
                    const std::array<int64_t, 3>&, uintptr_t, const std::array<int64_t, 3>&, uintptr_t>())
      .def(nb::init<int, const std::array<int, 5>&, uintptr_t, const std::array<int64_t, 3>&, uintptr_t,
                    const std::array<int64_t, 3>&, std::string_view, const std::array<uintptr_t, 2>&>())
      .def("low_bit_bytes", &DeviceCache::low_bit_bytes)
      .def("fill", &DeviceCache::fill)
      .def("append", &DeviceCache::append)
      .def("workspace_bytes", &DeviceCache::workspace_bytes)
      .def("decode", &DeviceCache::decode);
#endif
}

}  // namespace splash::python
