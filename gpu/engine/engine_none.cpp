// The engine of a build without CUDA: there is no device, so every first call throws NotBuilt.

#include "gpu/engine/attention.h"
#include "gpu/no_device.h"

namespace splash::gpu {

Stream::Stream(Priority /*priority*/) {
  no_device();
}
Stream::~Stream() = default;
void Stream::synchronize() const {
  no_device();
}

DeviceBuffer::DeviceBuffer(const Stream& /*stream*/, int64_t /*bytes*/) {
  no_device();
}
DeviceBuffer::~DeviceBuffer() = default;
void DeviceBuffer::fill(unsigned char /*byte*/) {
  no_device();
}
void DeviceBuffer::upload(const void* /*host*/, int64_t /*bytes*/) {
  no_device();
}
void DeviceBuffer::download(void* /*host*/, int64_t /*bytes*/) const {
  no_device();
}

DeviceTensor DeviceTensor::from(const Stream& /*stream*/, Dtype /*dtype*/, const Tensor<float>& /*host*/) {
  no_device();
}
DeviceTensor::DeviceTensor(const Stream& /*stream*/, Dtype /*dtype*/, std::array<int64_t, 4> /*extents*/) {
  no_device();
}
Tensor<double> DeviceTensor::to_host() const {
  no_device();
}

PreparedAttention::PreparedAttention(const Variant& /*variant*/, AttentionSpec /*spec*/, Dtype /*dtype*/,
                                     const Stream& stream)
    : stream_(&stream) {
  no_device();
}
std::vector<uint64_t> PreparedAttention::profile(const DeviceTensorView& /*q*/, const DeviceTensorView& /*k*/,
                                                 const DeviceTensorView& /*v*/,
                                                 const DeviceTensorView& /*out*/) const {
  no_device();
}
void PreparedAttention::enqueue(const DeviceTensorView& /*q*/, const DeviceTensorView& /*k*/,
                                const DeviceTensorView& /*v*/, const DeviceTensorView& /*out*/) const {
  no_device();
}
KernelResources kernel_resources(const KernelLaunch& /*launch*/) {
  no_device();
}

int64_t used_device_bytes() {
  no_device();
}
int64_t peak_device_bytes() {
  no_device();
}
void reset_peak_device_bytes() {
  no_device();
}

}  // namespace splash::gpu
