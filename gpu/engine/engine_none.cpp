// What a build without CUDA answers: there is no device, so nothing gets past the first call.

#include "core/error.h"
#include "gpu/benchmark/timing.h"
#include "gpu/device.h"
#include "gpu/engine/attention.h"
#include "gpu/entmax/attention.h"
#include "gpu/entmax/forward.h"
#include "gpu/entmax/rows/rows.h"

namespace splash::gpu {
namespace {

[[noreturn]] void no_device() {
  throw NotBuilt("no CUDA device: " + device_unavailable_reason());
}

}  // namespace

Stream::Stream() {
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

entmax::EntmaxAttention::EntmaxAttention(AttentionSpec /*spec*/, Dtype dtype, const Stream& stream,
                                         int64_t /*capacity*/, ForwardPath /*path*/,
                                         const std::optional<Tuning>& /*tuning*/)
    : dtype_(dtype), stream_(&stream) {
  no_device();
}
void entmax::EntmaxAttention::forward(const DeviceTensorView& /*q*/, const DeviceTensorView& /*k*/,
                                      const DeviceTensorView& /*v*/, const DeviceTensorView& /*out*/) {
  no_device();
}
bool entmax::EntmaxAttention::ensure_stored() {
  no_device();
}
void entmax::EntmaxAttention::backward(const DeviceTensorView& /*q*/, const DeviceTensorView& /*k*/,
                                       const DeviceTensorView& /*v*/, const DeviceTensorView& /*d_out*/,
                                       const DeviceTensorView& /*d_q*/, const DeviceTensorView& /*d_k*/,
                                       const DeviceTensorView& /*d_v*/, float* /*d_alpha*/,
                                       StoreCheck /*check*/) {
  no_device();
}
int64_t entmax::EntmaxAttention::support_entries() const {
  no_device();
}
int64_t entmax::forward_workspace_bytes(const AttentionSpec& /*spec*/, Dtype /*dtype*/,
                                        const Tuning& /*tuning*/) {
  no_device();
}
void entmax::enqueue_forward(const AttentionSpec& /*spec*/, Dtype /*dtype*/,
                             const ForwardArguments& /*arguments*/) {
  no_device();
}
void entmax::entmax_rows(Dtype /*dtype*/, const void* /*scores*/, const double* /*alpha*/, int64_t /*alphas*/,
                         int64_t /*rows*/, int64_t /*n*/, void* /*p*/, StreamHandle /*stream*/) {
  no_device();
}

Timing time_on_device(const std::function<void()>& /*enqueue*/, const Stream& /*stream*/,
                      const TimingOptions& /*options*/) {
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
