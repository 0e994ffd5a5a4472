// Exact alpha-entmax attention on the CPU, forward and backward.

#include <cstdio>
#include <numeric>

#include "core/workload.h"
#include "cpu_ref/attention/screened.h"

int main() {
  // 8 query heads share 2 key heads; each query sees the keys up to its own. Tensors are
  // [batch, heads, length, head_dim].
  splash::AttentionSpec spec;
  spec.shape = {.batch = 1, .q_heads = 8, .kv_heads = 2, .q_len = 512, .kv_len = 512, .head_dim = 64};
  spec.normalizer.alpha = {1.5};  // one for all heads, or one each
  spec.mask.causal = true;

  const auto inputs = splash::make_inputs<float>({.seed = 1}, spec.shape);  // yours: Tensor or TensorView
  const splash::Tensor<float>&q = inputs.q, &k = inputs.k, &v = inputs.v;

  const auto forward = splash::cpu_ref::screened_forward(spec, q, k, v, /*keep_probabilities=*/true);
  const auto gradients = splash::cpu_ref::screened_backward(spec, forward, q, k, v, /*dout=*/forward.out);

  const auto kept = std::accumulate(forward.support.begin(), forward.support.end(), int64_t{0});
  std::printf("%.1f of %.1f visible keys per query have p > 0; |dq| of the first element: %g\n",
              static_cast<double>(kept) / static_cast<double>(spec.shape.rows()),
              (static_cast<double>(spec.shape.kv_len) + 1) / 2, gradients.dq.data()[0]);
  return kept >= spec.shape.rows() && gradients.dk.size() == k.size() ? 0 : 1;
}
