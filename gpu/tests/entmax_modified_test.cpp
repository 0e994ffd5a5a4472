// Soft caps of scores, sinks, dropout and a bias of distances, alone and together, at lengths that models
// have and at lengths that no tile divides: output, tau, support and gradients against the double oracle.

#include "gpu/tests/entmax_both_passes.h"
#include "gpu/tests/skip_without_gpu.h"

using namespace splash;
using namespace splash::gpu;
using namespace splash::gpu::testing;

namespace {

constexpr int kSoftcap = 1, kSinks = 2, kDropout = 4, kBias = 8, kAll = 16;

AttentionSpec modified(const AttentionShape& shape, int parts, double alpha = 1.5) {
  AttentionSpec spec;
  spec.shape = shape;
  spec.normalizer.alpha = {alpha};
  spec.mask.causal = true;
  if ((parts & kSoftcap) != 0) spec.softcap = 5;
  for (int64_t h = 0; (parts & kSinks) != 0 && h < shape.q_heads; ++h)
    spec.sinks.push_back(0.5 * static_cast<double>(h) - 1);
  if ((parts & kDropout) != 0) spec.dropout = {.rate = 0.1, .seed = test_seed()};
  std::mt19937_64 random(test_seed());
  if ((parts & kBias) != 0) spec.bias = draw_bias(random, shape.q_heads, 200, -150);
  return spec;
}

}  // namespace

TEST_CASE("modified scores: every combination, dtype and head dimension, forward") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  for (int parts = 1; parts < kAll; ++parts) {
    for (const Dtype dtype : {Dtype::bf16, Dtype::f16, Dtype::f32}) {
      for (const int64_t dim : {64, 128, 256})
        check_forward(modified({1, 4, 2, 333, 777, dim}, parts), dtype, 6, stream);
    }
    check_forward(modified({1, 2, 1, 200, 3001, 64}, parts, 1.25), Dtype::bf16, 0.05, stream);
  }
}

TEST_CASE("modified scores: every combination, sparse and broad rows, gradients") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  for (int parts = 1; parts < kAll; ++parts) {
    for (const Dtype dtype : {Dtype::bf16, Dtype::f16, Dtype::f32}) {
      for (const double variance : {40.0, 6.0, 0.05}) {
        check_gradients(modified({2, 4, 2, 333, 777, 64}, parts), dtype, variance, stream);
        check_gradients(modified({1, 2, 1, 700, 300, 128}, parts), dtype, variance, stream);
      }
    }
  }
}

TEST_CASE("modified scores: 8192 keys with a window, as models have them") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  for (const int parts : {kSoftcap, kSinks, kDropout, kBias, kAll - 1}) {
    AttentionSpec spec = modified({1, 4, 2, 8192, 8192, 64}, parts);
    check_gradients(spec, Dtype::bf16, 6, stream);
    spec.mask.window = 512;
    check_gradients(spec, Dtype::bf16, 6, stream);
  }
}
