// The same on a GPU: fast on Hopper, portable from compute capability 8.0 on. Ends with 77 where there is no
// GPU.

#include <cmath>
#include <cstdio>

#include "core/workload.h"
#include "cpu_ref/attention/forward.h"
#include "gpu/device.h"
#include "gpu/entmax/attention.h"

int main() {
  if (splash::gpu::list_devices().empty()) {
    std::printf("not run: %s\n", splash::gpu::device_unavailable_reason().c_str());
    return 77;
  }
  splash::AttentionSpec spec;
  spec.shape = {.batch = 1, .q_heads = 8, .kv_heads = 2, .q_len = 512, .kv_len = 512, .head_dim = 64};
  spec.normalizer.alpha = {1.5};
  spec.mask.causal = true;
  const auto inputs = splash::make_inputs<double>({.seed = 1}, spec.shape);

  using splash::gpu::DeviceTensor;
  const splash::Dtype dtype = splash::Dtype::f32;
  const splash::gpu::Stream stream;
  const DeviceTensor q = DeviceTensor::from(stream, dtype, inputs.q);
  const DeviceTensor k = DeviceTensor::from(stream, dtype, inputs.k);
  const DeviceTensor v = DeviceTensor::from(stream, dtype, inputs.v);
  DeviceTensor out(stream, dtype, q.view().extents);

  splash::gpu::entmax::EntmaxAttention attention(spec, dtype, stream);
  attention.forward(q.view(), k.view(), v.view(), out.view());  // enqueues, and waits for nothing
  const splash::Tensor<double> result = out.to_host();          // waits

  const auto expected = splash::cpu_ref::attention_forward<double>(spec, inputs.q, inputs.k, inputs.v).out;
  double error = 0;
  for (int64_t i = 0; i < expected.size(); ++i)
    error = std::fmax(error, std::fabs(result.data()[i] - expected.data()[i]));
  std::printf("largest difference from float64 on the CPU: %g\n", error);
  return error < 1e-4 ? 0 : 1;
}
