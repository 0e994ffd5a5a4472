#include "gpu/entmax/problem.h"

#include <algorithm>

#include "gpu/entmax/forward.h"
#include "gpu/entmax/schedule/block_place.h"

namespace splash::gpu::entmax {

ForwardProblem problem_of(const AttentionSpec& spec, const ForwardArguments& arguments) {
  const AttentionShape& s = spec.shape;
  ForwardProblem p;
  p.q = arguments.q;
  p.k = arguments.k;
  p.v = arguments.v;
  p.out = arguments.out;
  p.tau = arguments.tau;
  p.support = arguments.support;
  p.alpha = arguments.alpha;
  p.alphas = static_cast<int>(spec.normalizer.alpha.size());
  p.heads = static_cast<int>(s.batch * s.q_heads);
  p.q_heads = static_cast<int>(s.q_heads);
  p.group = static_cast<int>(s.group());
  p.q_len = static_cast<int>(s.q_len);
  p.kv_len = static_cast<int>(s.kv_len);
  p.head_dim = static_cast<int>(s.head_dim);
  p.reach = static_cast<int>(spec.mask.causal ? s.kv_len - s.q_len + 1 : s.kv_len);
  p.scale = static_cast<float>(spec.score_scale());
  p.mask = arguments.mask;
  p.window = spec.mask.has_window(s) ? static_cast<int>(spec.mask.window) : 0;
  if (p.window > 0 && p.mask.ranges == nullptr) p.first_block = std::max(0, p.reach - p.window) / kErrorKeys;
  const Tuning& tuning = arguments.tuning;
  p.sampled_keys = tuning.sampled_keys;
  p.broad_samples = tuning.broad_samples;
  p.heads_together =
      tuning.heads_together > 0 ? tuning.heads_together : heads_together(s.kv_len * s.head_dim);
  return p;
}

}  // namespace splash::gpu::entmax
