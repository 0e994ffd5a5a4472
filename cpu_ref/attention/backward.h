#pragma once
// Gradients of the plain reference (MATH: Gradients).

#include <span>
#include <vector>

#include "core/attention_spec.h"
#include "core/tensor.h"
#include "cpu_ref/entmax/solver.h"

namespace splash::cpu_ref {

template <class T>
struct Gradients {
  Tensor<T> dq, dk, dv;          // shaped as q, k, v
  std::vector<double> dalpha;    // [q_heads]: dL/dalpha summed over that head's rows; 0 for softmax
  std::vector<double> dsinks{};  // [q_heads], alike; 0 where there are no sinks
  std::vector<double> dbias{};   // [q_heads, distances], alike; empty where there is no bias
};

struct BackwardOptions {
  Solver solver = Solver::bisection;
  // Straight-through (source 004): the forward product and dV use the probabilities of the selected keys. dQ
  // and dK use the Jacobian of the unselected normalizer, as if the selection were the identity.
  bool straight_through = false;
  std::span<const double> tau_offsets{};  // as in ForwardOptions
};

// dout: [batch, q_heads, q_len, head_dim]. Recomputes the probabilities. The result does not depend on the
// number of threads. It is exact away from changes of the support and of the selection. Throws what
// attention_forward throws.
template <class T>
Gradients<T> attention_backward(const AttentionSpec& spec, TensorView<const T> q, TensorView<const T> k,
                                TensorView<const T> v, TensorView<const T> dout,
                                const BackwardOptions& options = {});

}  // namespace splash::cpu_ref
