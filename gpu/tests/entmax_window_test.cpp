// Sliding windows, alone and in packed sequences, on both of forward's paths (on Hopper, bf16 and f16 run on
// either) and through backward: output, tau, support and gradients against the double oracle, at lengths that
// models have and at lengths that no tile divides. ForwardRun and OnDevice poison what kernels write.

#include "gpu/tests/entmax_both_passes.h"
#include "gpu/tests/skip_without_gpu.h"

using namespace splash;
using namespace splash::gpu;
using namespace splash::gpu::testing;

namespace {

AttentionSpec window_spec(const AttentionShape& shape, int64_t window, double alpha = 1.5) {
  AttentionSpec spec;
  spec.shape = shape;
  spec.normalizer.alpha = {alpha};
  spec.mask.causal = true;
  spec.mask.window = window;
  return spec;
}

constexpr double kSparse = 6, kBroad = 0.05, kDense = 1e-6;  // variances of the queries

}  // namespace

TEST_CASE("windows: 1024 of 16384 keys, forward and backward") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  for (const double variance : {kSparse, kBroad})
    check_gradients(window_spec({1, 2, 1, 16384, 16384, 64}, 1024), Dtype::bf16, variance, stream);
  check_forward(window_spec({1, 2, 2, 16384, 16384, 64}, 1024), Dtype::bf16, kSparse, stream);
  check_forward(window_spec({1, 1, 1, 8192, 16384, 128}, 4096), Dtype::f16, kSparse, stream);
}

TEST_CASE("windows: more keys than a block samples, so that keys are chosen by their norms") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  for (const int64_t dim : {64, 128}) {
    for (const int64_t window : {5000, 9001}) {
      check_forward(window_spec({1, 2, 1, 500, 16384, dim}, window), Dtype::bf16, kSparse, stream);
      check_forward(window_spec({1, 2, 1, 130, 12345, dim}, window), Dtype::f16, 1.0, stream);
    }
  }
}

TEST_CASE("windows: every place of the window's start in a tile") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  for (const int64_t window :
       {1, 2, 7, 63, 64, 65, 127, 128, 129, 255, 256, 257, 500, 1024, 1236, 3001, 5000}) {
    for (const Dtype dtype : {Dtype::bf16, Dtype::f16, Dtype::f32})
      check_forward(window_spec({1, 2, 1, 333, 3001, 64}, window), dtype, kSparse, stream);
    check_forward(window_spec({1, 2, 1, 1237, 1237, 128}, window), Dtype::bf16, kSparse, stream);
  }
}

TEST_CASE("windows: every head dimension, one query, more queries than keys") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
    for (const int64_t dim : {8, 64, 72, 128, 136, 256})
      check_forward(window_spec({2, 4, 2, 200, 900, dim}, 300), dtype, kSparse, stream);
    check_forward(window_spec({3, 4, 2, 1, 5000, 64}, 1000), dtype, kSparse, stream);
    check_forward(window_spec({1, 2, 2, 700, 300, 64}, 100), dtype, kSparse, stream);
    check_forward(window_spec({1, 2, 2, 700, 20000, 64}, 6000), dtype, kSparse, stream);
  }
}

TEST_CASE("windows: supports from one key to all that the window shows") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  for (const double variance : {kDense, 1e-2, kBroad, 0.3, 1.0, 1e4}) {
    for (const double alpha : {1.5, 2.0, 1.25})
      check_forward(window_spec({1, 2, 1, 700, 3000, 64}, 900, alpha), Dtype::bf16, variance, stream);
  }
}

TEST_CASE("windows: an alpha for each head, and the k_keep largest") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  for (const int64_t window : {1, 7, 100, 1024}) {
    for (const double variance : {kSparse, kBroad}) {
      AttentionSpec spec = window_spec({2, 4, 2, 700, 1500, 64}, window);
      spec.normalizer.alpha = {1.25, 1.5, 1.75, 2};
      check_forward(spec, Dtype::bf16, variance, stream);
      check_forward(spec, Dtype::f16, variance, stream);
      spec.selection = {.kind = SelectionKind::top_k_row, .k_keep = 9};
      check_forward(spec, Dtype::bf16, variance, stream);
    }
  }
}

TEST_CASE("windows: rows far apart outgrow their lists, or are broad") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  for (const int64_t window : {200, 1000, 2500}) {
    for (const int64_t every : {16, 131}) {
      for (const double factor : {0.11, 0.01}) {
        PortableCase c{.name = "rows far apart",
                       .spec = window_spec({1, 2, 1, 3000, 3300, 64}, window),
                       .dtype = Dtype::bf16};
        CAPTURE(window);
        CAPTURE(every);
        CAPTURE(factor);
        c.inputs = make_inputs<double>({.seed = test_seed(), .query_variance = kSparse}, c.spec.shape);
        for (int64_t row = 3; row < c.spec.shape.rows(); row += every) {
          double* const q = c.inputs.q.data() + row * c.spec.shape.head_dim;
          for (int64_t d = 0; d < c.spec.shape.head_dim; ++d) q[d] *= factor;
        }
        round_inputs(c.inputs, c.dtype);
        const int64_t capacity = visible_pairs(c.spec.shape, c.spec.mask);
        const ForwardRun run(c.spec, c.dtype, c.inputs, capacity, stream);
        check_against_oracle(c, run.out.to_host(), run.row_results());
      }
    }
  }
}

TEST_CASE("windows to both sides: forward and backward") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  for (const int64_t window : {1, 2, 64, 65, 129, 500, 776}) {
    for (const Dtype dtype : {Dtype::bf16, Dtype::f16, Dtype::f32}) {
      AttentionSpec spec = window_spec({2, 4, 2, 555, 777, 64}, window);
      spec.mask.causal = false;
      check_forward(spec, dtype, kSparse, stream);
      for (const double variance : {kSparse, kBroad, kDense}) check_gradients(spec, dtype, variance, stream);
      spec.shape = {1, 2, 1, 700, 300, 128};  // the first queries' places are before the first key
      check_gradients(spec, dtype, kBroad, stream);
      spec.mask.cu_seqlens_q = {0, 1, 130, 130, 700};
      spec.mask.cu_seqlens_k = {0, 0, 50, 200, 300};
      check_gradients(spec, dtype, kSparse, stream);
    }
  }
  AttentionSpec spec = window_spec({1, 2, 1, 8192, 8192, 64}, 65);
  spec.mask.causal = false;
  check_gradients(spec, Dtype::bf16, kSparse, stream);
}

TEST_CASE("windows: gradients agree with the double oracle") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16, Dtype::f32}) {
    for (const double variance : {40.0, kSparse, kBroad, kDense}) {
      for (const int64_t window : {1, 100, 128, 256, 700}) {
        check_gradients(window_spec({2, 4, 2, 555, 777, 64}, window), dtype, variance, stream);
        check_gradients(window_spec({1, 2, 1, 700, 300, 128}, window), dtype, variance, stream);
      }
    }
  }
}

TEST_CASE("packed sequences, with and without a window: forward and backward") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  for (const int64_t window : {0, 1, 100, 700}) {
    for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
      AttentionSpec spec = window_spec({1, 4, 2, 2500, 2500, 64}, window);
      spec.mask.cu_seqlens_q = spec.mask.cu_seqlens_k = {0, 1, 130, 130, 642, 1153, 2500};
      for (const double variance : {kSparse, kBroad}) {
        check_forward(spec, dtype, variance, stream);
        check_gradients(spec, dtype, variance, stream);
      }
      spec.shape.kv_len = 3000;  // sequences without keys, and of more queries than keys
      spec.mask.cu_seqlens_k = {0, 0, 50, 500, 642, 2000, 3000};
      check_forward(spec, dtype, kSparse, stream);
      check_gradients(spec, dtype, kBroad, stream);
    }
  }
}
