// The flagship's forward and backward together: gradients against the double oracle, and the growth of the
// store.

#include <algorithm>
#include <memory>

#include <cuda_runtime_api.h>

#include "gpu/cuda_check.h"
#include "gpu/tests/entmax_on_device.h"
#include "gpu/tests/entmax_tunings.h"
#include "gpu/tests/skip_without_gpu.h"

using namespace splash;
using namespace splash::gpu;
using namespace splash::gpu::testing;
using entmax::EntmaxAttention;
using entmax::StoreCheck;

namespace {

AttentionSpec entmax_spec(const AttentionShape& shape, bool causal, std::vector<double> alpha = {1.5}) {
  AttentionSpec spec;
  spec.shape = shape;
  spec.normalizer.alpha = std::move(alpha);
  spec.mask.causal = causal;
  return spec;
}

std::vector<char> bytes_of_both(EntmaxAttention& attention, OnDevice& tensors) {
  tensors.poison();
  tensors.forward(attention);
  tensors.backward(attention);
  return tensors.bytes();
}

}  // namespace

TEST_CASE("entmax attention: output and gradients agree with the double oracle") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
    for (const bool causal : {false, true}) {
      for (const AttentionShape& shape : {AttentionShape{1, 2, 2, 200, 200, 64}, {2, 4, 2, 65, 300, 128}}) {
        CAPTURE(to_string(shape));
        CAPTURE(causal);
        CAPTURE(to_string(dtype));
        // Exact in float, because the device's alphas are float.
        std::vector<double> alphas{1.5};
        if (shape.q_heads == 4) alphas = {1.25, 1.5, 1.75, 2};
        // Supports so small that all rows are stored.
        Case c = make_case(entmax_spec(shape, causal, alphas), dtype, {.query_variance = 40});
        OnDevice tensors(stream, c);
        EntmaxAttention attention(c.spec, dtype, stream);
        tensors.forward(attention);
        tensors.backward(attention);
        const double bound = Tolerance().of(dtype);
        const auto& in = c.inputs;
        const auto forward = cpu_ref::attention_forward<double>(c.spec, in.q, in.k, in.v);
        CHECK(nmse(tensors.out.to_host(), forward.out) <= bound);
        const Gradients expected = cpu_ref::attention_backward<double>(c.spec, in.q, in.k, in.v, c.d_out);
        CHECK(nmse(tensors.d_q.to_host(), expected.dq) <= bound);
        CHECK(nmse(tensors.d_k.to_host(), expected.dk) <= bound);
        CHECK(nmse(tensors.d_v.to_host(), expected.dv) <= bound);
        std::vector<float> alpha(shape.q_heads);
        tensors.d_alpha.download(alpha.data(), tensors.d_alpha.bytes());
        const std::vector<double> d_alpha(alpha.begin(), alpha.end());
        CHECK(nmse(d_alpha.data(), expected.dalpha.data(), shape.q_heads) <= 1e-6);
        const int64_t support = std::accumulate(forward.support.begin(), forward.support.end(), int64_t{0});
        CHECK(std::abs(attention.support_entries() - support) <= 2 + support / 1000);  // ties with tau
      }
    }
  }
}

TEST_CASE("entmax attention: every value of every knob agrees with the double oracle") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  std::vector<entmax::Tuning> tunings = every_value(false);
  for (const entmax::Tuning& backward : every_value(true)) tunings.push_back(backward);
  for (const double variance : {0.5, 40.0}) {  // broad rows for the dense path; small supports
    Case c =
        make_case(entmax_spec({1, 4, 2, 300, 5000, 64}, true), Dtype::bf16, {.query_variance = variance});
    const auto& in = c.inputs;
    const auto forward = cpu_ref::attention_forward<double>(c.spec, in.q, in.k, in.v);
    const Gradients expected = cpu_ref::attention_backward<double>(c.spec, in.q, in.k, in.v, c.d_out);
    const double bound = Tolerance().of(c.dtype);
    OnDevice tensors(stream, c);
    for (const entmax::Tuning& tuning : tunings) {
      CAPTURE(variance);
      CAPTURE(to_string(tuning));
      tensors.poison();
      EntmaxAttention attention(c.spec, c.dtype, stream, 0, entmax::ForwardPath::fastest, tuning);
      CHECK(attention.tuning() == tuning);
      tensors.forward(attention);
      tensors.backward(attention);
      CHECK(nmse(tensors.out.to_host(), forward.out) <= bound);
      CHECK(nmse(tensors.d_q.to_host(), expected.dq) <= bound);
      CHECK(nmse(tensors.d_k.to_host(), expected.dk) <= bound);
      CHECK(nmse(tensors.d_v.to_host(), expected.dv) <= bound);
    }
  }
  CHECK_THROWS_AS(EntmaxAttention(entmax_spec({1, 1, 1, 8, 8, 64}, false), Dtype::bf16, stream, 0,
                                  entmax::ForwardPath::fastest, entmax::Tuning{.sampled_keys = 3}),
                  InvalidArgument);
}

TEST_CASE("entmax attention: a store that is too small grows, and cuts nothing") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  const Case c = make_case(entmax_spec({1, 4, 2, 300, 300, 64}, true), Dtype::bf16,
                           {.kind = WorkloadKind::gaussian, .query_variance = 0.5});
  OnDevice tensors(stream, c);
  EntmaxAttention roomy(c.spec, c.dtype, stream, visible_pairs(c.spec.shape, c.spec.mask));
  const auto expected = bytes_of_both(roomy, tensors);
  CHECK(bytes_of_both(roomy, tensors) == expected);
  const int64_t entries = roomy.support_entries();
  REQUIRE(entries > 4 * 300);

  SUBCASE("in backward, whatever became of the output since") {
    EntmaxAttention tiny(c.spec, c.dtype, stream, 1);
    tensors.poison();
    tensors.forward(tiny);
    CHECK(tiny.support_entries() == entries);
    tensors.backward(tiny);
    CHECK(tensors.bytes() == expected);
    CHECK(tiny.capacity() >= entries);
    const int64_t capacity = tiny.capacity();
    CHECK(bytes_of_both(tiny, tensors) == expected);
    CHECK(tiny.capacity() == capacity);
  }
  SUBCASE("when asked to, and then needs no check") {
    EntmaxAttention tiny(c.spec, c.dtype, stream, 1);
    tensors.poison();
    tensors.forward(tiny);
    CHECK(tiny.ensure_stored());
    CHECK_FALSE(tiny.ensure_stored());
    tensors.forward(tiny);
    tensors.backward(tiny, StoreCheck::trust);
    CHECK(tensors.bytes() == expected);
  }
}

TEST_CASE("entmax attention: forward and backward can be captured into a graph") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  const Case c = make_case(entmax_spec({1, 2, 1, 200, 260, 64}, false), Dtype::bf16);
  OnDevice tensors(stream, c);
  EntmaxAttention attention(c.spec, c.dtype, stream, 8);
  const auto expected = bytes_of_both(attention, tensors);
  EntmaxAttention captured(c.spec, c.dtype, stream, 8);
  tensors.forward(captured);
  captured.ensure_stored();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check_cuda(cudaStreamBeginCapture(stream.handle(), cudaStreamCaptureModeThreadLocal), "begin a capture");
  tensors.forward(captured);
  tensors.backward(captured);
  check_cuda(cudaStreamEndCapture(stream.handle(), &graph), "end a capture");
  check_cuda(cudaGraphInstantiate(&executable, graph, 0), "instantiate a graph");
  for (int i = 0; i < 3; ++i) {
    tensors.poison();
    check_cuda(cudaGraphLaunch(executable, stream.handle()), "launch a graph");
    CHECK(tensors.bytes() == expected);
  }
  CHECK(captured.support_entries() <= captured.capacity());
  check_cuda(cudaGraphExecDestroy(executable), "destroy a graph");
  check_cuda(cudaGraphDestroy(graph), "destroy a graph");
}

TEST_CASE("entmax attention: refuses what it cannot take") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  const AttentionSpec spec = entmax_spec({1, 2, 2, 64, 64, 64}, false);
  CHECK_THROWS_AS(EntmaxAttention(spec, Dtype::f64, stream), Unsupported);
  CHECK_THROWS_AS(EntmaxAttention(spec, Dtype::bf16, stream, -1), InvalidArgument);
  CHECK_THROWS_AS(EntmaxAttention(spec, Dtype::bf16, stream, int64_t{1} << 31), InvalidArgument);
  const OnDevice tensors(stream, make_case(spec, Dtype::bf16));
  EntmaxAttention attention(spec, Dtype::bf16, stream);
  CHECK_THROWS_WITH_AS(attention.ensure_stored(), "there is no support yet; call forward() first",
                       InvalidArgument);
  CHECK_THROWS_AS(tensors.backward(attention, StoreCheck::trust), InvalidArgument);
  const OnDevice other(stream, make_case(entmax_spec({1, 2, 2, 65, 64, 64}, false), Dtype::bf16));
  CHECK_THROWS_AS(other.forward(attention), InvalidArgument);
  const OnDevice f16(stream, make_case(spec, Dtype::f16));
  CHECK_THROWS_AS(f16.forward(attention), InvalidArgument);
}
