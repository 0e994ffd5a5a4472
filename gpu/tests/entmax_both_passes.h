#pragma once
// Checks of forward and backward on the device against the double oracle, on both of forward's paths.
// ForwardRun and OnDevice poison what kernels write.

#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "gpu/tests/entmax_on_device.h"
#include "gpu/tests/entmax_portable_case.h"

namespace splash::gpu::testing {

inline void check_forward(const AttentionSpec& spec, Dtype dtype, double variance, const Stream& stream) {
  PortableCase c{
      .name = fmt::format("{}, {}, window {}, soft cap {}, dropout {}, variance {}", to_string(spec.shape),
                          to_string(dtype), spec.mask.window, spec.softcap, spec.dropout.rate, variance),
      .spec = spec,
      .dtype = dtype,
      .inputs = make_inputs<double>({.seed = test_seed(), .query_variance = variance}, spec.shape)};
  round_inputs(c.inputs, dtype);
  const Expected expected(c);
  for (const entmax::ForwardPath path : {entmax::ForwardPath::portable, entmax::ForwardPath::fastest}) {
    CAPTURE(static_cast<int>(path));
    const int64_t capacity = std::max<int64_t>(1, visible_pairs(spec.shape, spec.mask));
    const ForwardRun run(spec, dtype, c.inputs, capacity, stream, path);
    check_against(expected, c, run.out.to_host(), run.row_results());
  }
}

inline void check_gradients(const AttentionSpec& spec, Dtype dtype, double variance, const Stream& stream) {
  CAPTURE(to_string(spec.shape));
  CAPTURE(to_string(dtype));
  CAPTURE(spec.mask.window);
  CAPTURE(spec.softcap);
  CAPTURE(spec.sinks.size());
  CAPTURE(spec.dropout.rate);
  CAPTURE(spec.bias.distances);
  CAPTURE(variance);
  const Case c = make_case(spec, dtype, {.query_variance = variance});
  const auto& in = c.inputs;
  const auto forward = cpu_ref::attention_forward<double>(spec, in.q, in.k, in.v);
  const Gradients expected = cpu_ref::attention_backward<double>(spec, in.q, in.k, in.v, c.d_out);
  const double bound = dtype == Dtype::f32 ? 1e-9 : Tolerance().of(dtype);
  for (const entmax::ForwardPath path : {entmax::ForwardPath::portable, entmax::ForwardPath::fastest}) {
    CAPTURE(static_cast<int>(path));
    const OnDevice tensors(stream, c);
    entmax::EntmaxAttention attention(spec, dtype, stream, 0, path);
    tensors.forward(attention);
    tensors.backward(attention);
    if (!spec.sinks.empty()) {
      // Rows add to dL/dsink with either sign: the bound is relative to what one row may add.
      const std::vector<double> d_sinks = tensors.sink_gradients();
      for (size_t h = 0; h < d_sinks.size(); ++h)
        CHECK(std::abs(d_sinks[h] - expected.dsinks[h]) <= 1e-3 * std::sqrt(spec.shape.rows()));
    }
    if (spec.bias.any()) {
      const std::vector<double>& d_bias = expected.dbias;
      const double norm = std::inner_product(d_bias.begin(), d_bias.end(), d_bias.begin(), 0.0);
      CHECK(squared_error(tensors.bias_gradients(), d_bias) <= bound * norm);
    }
    CHECK(nmse(tensors.out.to_host(), forward.out) <= bound);
    CHECK(nmse(tensors.d_q.to_host(), expected.dq) <= bound);
    CHECK(nmse(tensors.d_k.to_host(), expected.dk) <= bound);
    CHECK(nmse(tensors.d_v.to_host(), expected.dv) <= bound);
  }
}

}  // namespace splash::gpu::testing
