#pragma once
// A case's tensors on the device, for EntmaxAttention's forward and backward.

#include <array>
#include <vector>

#include "gpu/entmax/attention.h"
#include "gpu/tests/entmax_backward_case.h"

namespace splash::gpu::testing {

// Holds a case's tensors on the device.
struct OnDevice {
  OnDevice(const Stream& stream, const Case& c)
      : q(DeviceTensor::from(stream, c.dtype, c.inputs.q)),
        k(DeviceTensor::from(stream, c.dtype, c.inputs.k)),
        v(DeviceTensor::from(stream, c.dtype, c.inputs.v)),
        d_out(DeviceTensor::from(stream, c.dtype, c.d_out)),
        out(stream, c.dtype, q.view().extents),
        d_q(stream, c.dtype, q.view().extents),
        d_k(stream, c.dtype, k.view().extents),
        d_v(stream, c.dtype, v.view().extents),
        d_alpha(stream, c.spec.shape.q_heads * int64_t{sizeof(float)}),
        d_sinks(stream, c.spec.shape.q_heads * int64_t{sizeof(float)}),
        d_bias(stream, std::max<int64_t>(1, c.spec.bias.table.size()) * int64_t{sizeof(float)}) {
    poison();
  }

  void poison() {
    for (DeviceBuffer* buffer : results()) buffer->fill(0xFF);
  }
  void forward(entmax::EntmaxAttention& attention) const {
    attention.forward(q.view(), k.view(), v.view(), out.view());
  }
  void backward(entmax::EntmaxAttention& attention,
                entmax::StoreCheck check = entmax::StoreCheck::wait) const {
    attention.backward(q.view(), k.view(), v.view(), d_out.view(), d_q.view(), d_k.view(), d_v.view(),
                       static_cast<float*>(d_alpha.data()), check, static_cast<float*>(d_sinks.data()),
                       static_cast<float*>(d_bias.data()));
  }
  std::vector<double> sink_gradients() const { return numbers(d_sinks); }  // [q_heads]
  std::vector<double> bias_gradients() const { return numbers(d_bias); }   // [q_heads, distances]
  // The output and all gradients, byte for byte.
  std::vector<char> bytes() {
    std::vector<char> all;
    for (const DeviceBuffer* buffer : results()) {
      std::vector<char> part(buffer->bytes());
      buffer->download(part.data(), buffer->bytes());
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

  DeviceTensor q, k, v, d_out, out, d_q, d_k, d_v;
  DeviceBuffer d_alpha, d_sinks, d_bias;  // d_sinks and d_bias stay poisoned where there are none

 private:
  static std::vector<double> numbers(const DeviceBuffer& buffer) {
    std::vector<float> host(static_cast<size_t>(buffer.bytes()) / sizeof(float));
    buffer.download(host.data(), buffer.bytes());
    return {host.begin(), host.end()};
  }
  std::array<DeviceBuffer*, 7> results() {
    return {&out.buffer(), &d_q.buffer(), &d_k.buffer(), &d_v.buffer(), &d_alpha, &d_sinks, &d_bias};
  }
};

}  // namespace splash::gpu::testing
