#include "gpu/entmax/portable/problem.h"

namespace splash::gpu::entmax::portable {

PortableProblem problem_of(const AttentionSpec& spec, const ForwardArguments& arguments) {
  PortableProblem p{entmax::problem_of(spec, arguments)};
  if (arguments.tuning.heads_together == 0) p.heads_together = p.heads;
  if (!spec.selection.head_k_keep.empty()) p.head_k_keep = arguments.head_k_keep;
  p.tau_offsets = arguments.tau_offsets;
  p.cap = static_cast<float>(spec.softcap / spec.score_scale());
  p.sinks = spec.sinks.empty() ? nullptr : arguments.sinks;
  p.dropout = device_dropout(spec.dropout, arguments.dropout_seed);
  p.bias = device_bias(spec, arguments.bias);
  return p;
}

}  // namespace splash::gpu::entmax::portable
