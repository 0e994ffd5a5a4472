#include "gpu/engine/tensor.h"

#include <bit>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/parallel.h"

namespace splash::gpu {
namespace {

uint16_t half_bits(double x) {
  return std::bit_cast<uint16_t>(__half_raw(__double2half(x)));
}
uint16_t bfloat16_bits(double x) {
  return std::bit_cast<uint16_t>(__nv_bfloat16_raw(__double2bfloat16(x)));
}
double from_half_bits(uint16_t bits) {
  return __half2float(__half(std::bit_cast<__half_raw>(bits)));
}
double from_bfloat16_bits(uint16_t bits) {
  return __bfloat162float(__nv_bfloat16(std::bit_cast<__nv_bfloat16_raw>(bits)));
}

template <class To, class From, class Convert>
void upload_as(DeviceBuffer& buffer, const Tensor<From>& host, const Convert& convert) {
  std::vector<To> converted(static_cast<size_t>(host.size()));
  parallel_for(host.size(), kElementsAtOnce, [&](int64_t i) { converted[i] = convert(host.data()[i]); });
  buffer.upload(converted.data(), buffer.bytes());  // pageable memory: staged before the call returns
}

template <class From, class Convert>
void download_as(const DeviceBuffer& buffer, Tensor<double>& host, const Convert& convert) {
  std::vector<From> raw(static_cast<size_t>(host.size()));
  buffer.download(raw.data(), buffer.bytes());
  parallel_for(host.size(), kElementsAtOnce, [&](int64_t i) { host.data()[i] = convert(raw[i]); });
}

template <class T>
DeviceTensor make_from(const Stream& stream, Dtype dtype, const Tensor<T>& host) {
  DeviceTensor tensor(stream, dtype, {host.batch(), host.heads(), host.length(), host.dim()});
  switch (dtype) {
    case Dtype::f64:
      upload_as<double>(tensor.buffer(), host, [](T x) { return static_cast<double>(x); });
      break;
    case Dtype::f32:
      upload_as<float>(tensor.buffer(), host, [](T x) { return static_cast<float>(x); });
      break;
    case Dtype::f16:
      upload_as<uint16_t>(tensor.buffer(), host, [](T x) { return half_bits(x); });
      break;
    case Dtype::bf16:
      upload_as<uint16_t>(tensor.buffer(), host, [](T x) { return bfloat16_bits(x); });
      break;
  }
  return tensor;
}

}  // namespace

DeviceTensor::DeviceTensor(const Stream& stream, Dtype dtype, std::array<int64_t, 4> extents)
    : dtype_(dtype),
      extents_(extents),
      buffer_(stream, extents[0] * extents[1] * extents[2] * extents[3] * bytes_of(dtype)) {}

DeviceTensor DeviceTensor::from(const Stream& stream, Dtype dtype, const Tensor<float>& host) {
  return make_from(stream, dtype, host);
}
DeviceTensor DeviceTensor::from(const Stream& stream, Dtype dtype, const Tensor<double>& host) {
  return make_from(stream, dtype, host);
}

Tensor<double> DeviceTensor::to_host() const {
  Tensor<double> host(extents_[0], extents_[1], extents_[2], extents_[3]);
  switch (dtype_) {
    case Dtype::f64:
      buffer_.download(host.data(), buffer_.bytes());
      break;
    case Dtype::f32:
      download_as<float>(buffer_, host, [](float x) { return static_cast<double>(x); });
      break;
    case Dtype::f16:
      download_as<uint16_t>(buffer_, host, from_half_bits);
      break;
    case Dtype::bf16:
      download_as<uint16_t>(buffer_, host, from_bfloat16_bits);
      break;
  }
  return host;
}

}  // namespace splash::gpu
