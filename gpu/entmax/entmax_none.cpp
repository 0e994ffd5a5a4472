// The flagship of a build without CUDA: every call throws NotBuilt.

#include "gpu/entmax/attention.h"
#include "gpu/entmax/forward.h"
#include "gpu/entmax/rows/rows.h"
#include "gpu/no_device.h"

namespace splash::gpu::entmax {

EntmaxAttention::EntmaxAttention(AttentionSpec /*spec*/, Dtype dtype, const Stream& stream,
                                 int64_t /*capacity*/, ForwardPath /*path*/,
                                 const std::optional<Tuning>& /*tuning*/)
    : dtype_(dtype), stream_(&stream) {
  no_device();
}
void EntmaxAttention::forward(const DeviceTensorView& /*q*/, const DeviceTensorView& /*k*/,
                              const DeviceTensorView& /*v*/, const DeviceTensorView& /*out*/) {
  no_device();
}
bool EntmaxAttention::ensure_stored() {
  no_device();
}
void EntmaxAttention::backward(const DeviceTensorView& /*q*/, const DeviceTensorView& /*k*/,
                               const DeviceTensorView& /*v*/, const DeviceTensorView& /*d_out*/,
                               const DeviceTensorView& /*d_q*/, const DeviceTensorView& /*d_k*/,
                               const DeviceTensorView& /*d_v*/, float* /*d_alpha*/, StoreCheck /*check*/,
                               float* /*d_sinks*/, float* /*d_bias*/) {
  no_device();
}
int64_t EntmaxAttention::support_entries() const {
  no_device();
}
int64_t forward_workspace_bytes(const AttentionSpec& /*spec*/, Dtype /*dtype*/, const Tuning& /*tuning*/) {
  no_device();
}
void enqueue_forward(const AttentionSpec& /*spec*/, Dtype /*dtype*/, const ForwardArguments& /*arguments*/) {
  no_device();
}
void entmax_rows(Dtype /*dtype*/, const void* /*scores*/, const double* /*alpha*/, int64_t /*alphas*/,
                 int64_t /*rows*/, int64_t /*n*/, void* /*p*/, StreamHandle /*stream*/) {
  no_device();
}

}  // namespace splash::gpu::entmax
