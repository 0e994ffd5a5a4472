// The portable path of exact entmax attention: output, tau and support against the double oracle, and
// gradients through EntmaxAttention. On Hopper, ForwardPath::portable selects it.

#include "gpu/tests/entmax_attention_scan.h"
#include "gpu/tests/entmax_on_device.h"
#include "gpu/tests/entmax_portable_case.h"
#include "gpu/tests/skip_without_gpu.h"

using namespace splash;
using namespace splash::gpu;
using namespace splash::gpu::testing;
using entmax::EntmaxAttention;
using entmax::ForwardPath;

namespace {

void check_case(const PortableCase& c, const Stream& stream) {
  const ForwardRun run(c.spec, c.dtype, c.inputs, c.spec.shape.rows() * c.spec.shape.kv_len, stream,
                       c.tau_offsets.empty() ? ForwardPath::portable : ForwardPath::fastest, c.tau_offsets);
  check_against_oracle(c, run.out.to_host(), run.row_results());
}

AttentionSpec spec_of(const AttentionShape& shape, std::vector<double> alpha = {1.5}) {
  AttentionSpec spec;
  spec.shape = shape;
  spec.normalizer.alpha = std::move(alpha);
  return spec;
}

PortableCase case_of(const char* name, const AttentionSpec& spec, Dtype dtype, Workload workload = {}) {
  workload.seed = test_seed();
  PortableCase c{
      .name = name, .spec = spec, .dtype = dtype, .inputs = make_inputs<double>(workload, spec.shape)};
  round_inputs(c.inputs, c.dtype);
  return c;
}

Mask all_parts(const AttentionShape& s) {
  Mask mask{.causal = true};
  for (int64_t i = 0; i < s.q_len; ++i) mask.q_positions.push_back((i * 37) % (s.kv_len + 5));
  for (int64_t i = 0; i < s.batch * s.q_heads * s.kv_len; ++i)
    mask.k_positions.push_back((i * 29) % s.kv_len);
  mask.cu_seqlens_q = {0, s.q_len / 3, s.q_len / 3, s.q_len};
  mask.cu_seqlens_k = {0, s.kv_len / 2, s.kv_len / 2 + 1, s.kv_len};
  return mask;
}

// Unclear rows get an output gradient of 0, so they add nothing, whichever keys they keep.
void check_gradients(const char* name, Case c, const Stream& stream, int64_t capacity = 0) {
  CAPTURE(name);
  CAPTURE(to_string(c.dtype));
  const auto unclear = unclear_rows(c.spec, c.inputs);
  for (int64_t row = 0; row < c.spec.shape.rows(); ++row) {
    double* const of_row = c.d_out.data() + row * c.d_out.dim();
    if (unclear[static_cast<size_t>(row)] != 0) std::fill(of_row, of_row + c.d_out.dim(), 0.0);
  }
  const auto& in = c.inputs;
  leave_unclear_rows_out(c, cpu_ref::attention_forward<double>(c.spec, in.q, in.k, in.v).tau);
  const OnDevice tensors(stream, c);
  EntmaxAttention attention(c.spec, c.dtype, stream, capacity, ForwardPath::portable);
  CHECK(attention.path() == ForwardPath::portable);
  tensors.forward(attention);
  tensors.backward(attention);
  const Gradients expected = cpu_ref::attention_backward<double>(c.spec, in.q, in.k, in.v, c.d_out);
  const double bound = c.dtype == Dtype::f32 ? 1e-9 : Tolerance().of(c.dtype);
  CHECK(nmse(tensors.d_q.to_host(), expected.dq) <= bound);
  CHECK(nmse(tensors.d_k.to_host(), expected.dk) <= bound);
  CHECK(nmse(tensors.d_v.to_host(), expected.dv) <= bound);
  std::vector<float> alpha(static_cast<size_t>(c.spec.shape.q_heads));
  tensors.d_alpha.download(alpha.data(), tensors.d_alpha.bytes());
  const std::vector<double> d_alpha(alpha.begin(), alpha.end());
  CHECK(nmse(d_alpha.data(), expected.dalpha.data(), c.spec.shape.q_heads) <= 1e-6);
}

}  // namespace

TEST_CASE("portable entmax: 400 problems in which all features meet, against the double oracle") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  CaseDrawer drawer(test_seed());
  for (int i = 0; i < 400; ++i) check_case(drawer.draw(), stream);
}

TEST_CASE("portable entmax: 300 problems with given thresholds, with and without a k_keep a head") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  CaseDrawer drawer(test_seed() + 7);
  for (int i = 0; i < 300; ++i) check_case(drawer.draw_given(), stream);
  for (int i = 0; i < 50; ++i) {
    PortableCase c = drawer.draw();
    drawer.draw_head_k_keep(c);
    check_case(c, stream);
  }
}

TEST_CASE("portable entmax: every dtype and head dimension, with all parts of a mask and an alpha a head") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16, Dtype::f32}) {
    for (const int64_t dim : {8, 32, 40, 64, 96, 128, 136, 192, 256}) {
      const AttentionShape shape{2, 4, 2, 131, 517, dim};
      AttentionSpec spec = spec_of(shape, {1.25, 1.5, 1.75, 2});
      check_case(case_of("no mask", spec, dtype, {.query_variance = 6}), stream);
      spec.mask = all_parts(shape);
      check_case(case_of("all masks", spec, dtype), stream);
    }
  }
}

TEST_CASE("portable entmax: supports from one key to all of them, and longer than any list") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16, Dtype::f32}) {
    for (const double variance : {1e-6, 1e-2, 0.1, 0.3, 1.0, 6.0, 1e4}) {
      CAPTURE(variance);
      for (const double alpha : {1.5, 2.0, 1.25})
        check_case(
            case_of("long", spec_of({1, 2, 1, 65, 3000, 64}, {alpha}), dtype, {.query_variance = variance}),
            stream);
    }
  }
}

TEST_CASE("portable entmax: k_keep below and above the support, with ties, in lists and beyond them") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  for (const Dtype dtype : {Dtype::bf16, Dtype::f32}) {
    for (const WorkloadKind kind : {WorkloadKind::gaussian, WorkloadKind::ties, WorkloadKind::sink}) {
      for (const int64_t k_keep : {1, 3, 8, 40, 100, 101, 500, 899, 900, 4000}) {
        CAPTURE(k_keep);
        AttentionSpec spec = spec_of({1, 2, 1, 70, 900, 64});
        spec.selection = {.kind = SelectionKind::top_k_row, .k_keep = k_keep};
        check_case(case_of("k_keep", spec, dtype, {.kind = kind, .query_variance = 0.05}), stream);
        spec.mask.causal = true;
        check_case(case_of("k_keep, causal", spec, dtype, {.kind = kind, .query_variance = 1}), stream);
      }
    }
  }
}

TEST_CASE("portable entmax: a support that does not fit is counted, never cut, and the output stays right") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  const PortableCase c =
      case_of("mixed", spec_of({1, 2, 2, 300, 700, 64}), Dtype::bf16, {.query_variance = 0.3});
  check_small_store(c.spec, c.dtype, c.inputs, 5000, stream, ForwardPath::portable);
}

TEST_CASE("portable entmax: p, its sum, the support and the output at every alpha") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  const auto scan = [&](Pattern pattern, int64_t n, Dtype dtype) {
    const PortableCase c = scan_case(pattern, n, dtype);
    const ForwardRun run(c.spec, c.dtype, c.inputs, c.spec.shape.rows() * n, stream, ForwardPath::portable);
    check_scan(c, run.out.to_host(), run.row_results());
  };
  for (const Dtype dtype : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
    for (const Pattern pattern : kPatterns) {
      for (const int64_t n : {1, 2, 3, 64, 107, 300, 1000, 8192, 20000}) scan(pattern, n, dtype);
    }
    for (const Pattern pattern : {Pattern::equal, Pattern::near_equal, Pattern::far_above, Pattern::ramp})
      scan(pattern, 200000, dtype);
  }
}

TEST_CASE("portable entmax: every run gives the same bits") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  for (const Dtype dtype : {Dtype::bf16, Dtype::f32}) {
    for (const double variance : {0.3, 6.0}) {  // too many keys for the lists, and few enough
      AttentionSpec spec = spec_of({1, 4, 2, 300, 1500, 64});
      spec.mask.causal = true;
      const PortableCase c = case_of("again", spec, dtype, {.query_variance = variance});
      const auto run = [&] {
        return ForwardRun(c.spec, c.dtype, c.inputs, 1 << 19, stream, ForwardPath::portable).bytes();
      };
      const auto expected = run();
      for (int i = 0; i < 20; ++i) REQUIRE(run() == expected);
    }
  }
}

TEST_CASE("portable entmax: gradients agree with the double oracle") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  const AttentionShape shape{2, 4, 2, 131, 257, 64};
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
    AttentionSpec spec = spec_of(shape, {1.25, 1.5, 1.75, 2});
    check_gradients("no mask", make_case(spec, dtype), stream);
    check_gradients("a store that grows", make_case(spec, dtype), stream, 1);
    check_gradients("broad", make_case(spec, dtype, {.query_variance = 0.05}), stream);
    spec.mask.causal = true;
    check_gradients("causal", make_case(spec, dtype), stream);
    spec.mask = all_parts(shape);
    check_gradients("all masks", make_case(spec, dtype), stream);
    spec.mask = {};
    spec.selection = {.kind = SelectionKind::top_k_row, .k_keep = 5};
    spec.selection = {.kind = SelectionKind::top_k_row, .head_k_keep = {5, 0, 1, 150}};
    check_gradients("k_keep of each head", make_case(spec, dtype), stream);
    spec.selection = {.kind = SelectionKind::top_k_row, .k_keep = 5};
    check_gradients("k_keep 5", make_case(spec, dtype), stream);
    check_gradients("k_keep 5, broad", make_case(spec, dtype, {.query_variance = 0.05}), stream);
    spec.selection.k_keep = 150;
    check_gradients("k_keep 150, broad", make_case(spec, dtype, {.query_variance = 0.01}), stream);
    for (const int64_t dim : {32, 96, 128, 192, 256})
      check_gradients("other dimensions", make_case(spec_of({1, 2, 1, 65, 200, dim}), dtype), stream);
  }
}

TEST_CASE("portable entmax: what only it takes goes there by itself, and what it cannot take is refused") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  const AttentionSpec spec = spec_of({1, 2, 2, 64, 64, 64});
  CHECK(EntmaxAttention(spec, Dtype::f32, stream).path() == ForwardPath::portable);
  CHECK_THROWS_AS(EntmaxAttention(spec, Dtype::f32, stream, 0, ForwardPath::hopper), Unsupported);
  CHECK_THROWS_AS(EntmaxAttention(spec, Dtype::f64, stream), Unsupported);
  AttentionSpec positions = spec;
  positions.mask.q_positions = positions.mask.k_positions = std::vector<int64_t>(64, 1);
  CHECK(EntmaxAttention(positions, Dtype::bf16, stream).path() == ForwardPath::portable);
  AttentionSpec of_heads = spec;
  of_heads.selection = {.kind = SelectionKind::top_k_row, .head_k_keep = {1, 2}};
  CHECK_THROWS_AS(entmax::enqueue_forward(of_heads, Dtype::bf16, {.stream = stream.handle()}),
                  InvalidArgument);
  const float offset = 0;
  CHECK_THROWS_AS(
      entmax::enqueue_forward(spec, Dtype::bf16, {.tau_offsets = &offset, .path = ForwardPath::hopper}),
      Unsupported);
  CHECK_THROWS_AS(entmax::enqueue_forward(positions, Dtype::bf16, {.stream = stream.handle()}),
                  InvalidArgument);
}
